"""Facts are found by their words, as episodes are: the same keys, an index on them, and a view to search."""

from alembic import op
from sqlalchemy import Connection, text

revision = "0010_pre_found_facts"
down_revision = "0009_pre_encryption"
branch_labels = None
depends_on = None

PAGE = 5_000

STATEMENTS = (
    # The default lets workers of the former release go on: what they learn is found by its episodes until the next
    # reextract, and by its words never.
    "ALTER TABLE aftermind.facts ADD COLUMN terms bigint[] NOT NULL DEFAULT '{}'",
    "ALTER TABLE aftermind.facts ALTER COLUMN lexemes DROP NOT NULL",
    # As `searched` is for episodes, and for the same reason (see 0004).
    """
    CREATE VIEW aftermind.searched_facts AS
    SELECT id, namespace, user_id, valid_from, valid_to, recorded_at, superseded_at, terms
    FROM aftermind.facts
    WHERE texteq(namespace, (SELECT NULLIF(current_setting('aftermind.namespace', true), '')))
    """,
)

_PAGE = text(
    f"""
    SELECT namespace, user_id, id, subject || ' ' || replace(predicate, '_', ' ') || ' ' || object AS content
    FROM aftermind.facts WHERE (namespace, user_id, id) > (:namespace, :user, CAST(:id AS uuid))
    ORDER BY namespace, user_id, id LIMIT {PAGE}
    """
)
_FILL = text(
    """
    UPDATE aftermind.facts AS facts SET terms = CAST(given.terms AS bigint[])
    FROM unnest(CAST(:namespaces AS text[]), CAST(:users AS text[]), CAST(:ids AS uuid[]), CAST(:terms AS text[]))
         AS given (namespace, user_id, id, terms)
    WHERE facts.namespace = given.namespace AND facts.user_id = given.user_id AND facts.id = given.id
    """
)


def upgrade() -> None:
    """Add column, view and index, and give each fact its terms."""
    for statement in STATEMENTS:
        op.execute(statement)
    _fill(op.get_bind())
    op.execute("CREATE INDEX facts_terms ON aftermind.facts USING gin (terms) WITH (fastupdate = off)")


def _fill(connection: Connection) -> None:
    from aftermind.stores.postgres.terms import term_keys  # what the search of this release compares with
    from aftermind.types import Scope

    language = connection.scalar(text("SELECT value FROM aftermind.meta WHERE key = 'language'")) or "english"
    last = {"namespace": "", "user": "", "id": "00000000-0000-0000-0000-000000000000"}
    while rows := connection.execute(_PAGE, last).all():
        keys = [
            term_keys(Scope(namespace=row.namespace, user_id=row.user_id or None), row.content, language)
            for row in rows
        ]
        connection.execute(
            _FILL,
            {
                "namespaces": [row.namespace for row in rows],
                "users": [row.user_id for row in rows],
                "ids": [row.id for row in rows],
                "terms": ["{" + ",".join(map(str, each)) + "}" for each in keys],
            },
        )
        last = {"namespace": rows[-1].namespace, "user": rows[-1].user_id, "id": str(rows[-1].id)}
