"""What workers of the former release leave out of the rows that they write, filled in when they are gone."""

from sqlalchemy import text

from aftermind.db import sealing
from aftermind.db.base import Database
from aftermind.db.transaction import pg
from aftermind.stores.postgres.terms import term_keys
from aftermind.types import Scope

PAGE = 1_000
FIRST = "00000000-0000-0000-0000-000000000000"

_LANGUAGE = text("SELECT value FROM aftermind.meta WHERE key = 'language'")
# As `Fact.text` has it. Words of sealed facts are keyed: a change of keys gives them theirs.
_WITHOUT = text(
    """
    SELECT namespace, user_id, id, subject || ' ' || replace(predicate, '_', ' ') || ' ' || object AS said
    FROM aftermind.facts
    WHERE terms = '{}' AND NOT starts_with(object, :sealed)
      AND (namespace, user_id, id) > (:namespace, :user, CAST(:id AS uuid))
    ORDER BY namespace, user_id, id LIMIT :limit
    """
)
_FILL = text(
    """
    UPDATE aftermind.facts AS facts SET terms = CAST(given.terms AS bigint[])
    FROM unnest(CAST(:namespaces AS text[]), CAST(:users AS text[]), CAST(:ids AS uuid[]), CAST(:terms AS text[]))
         AS given (namespace, user_id, id, terms)
    WHERE facts.namespace = given.namespace AND facts.user_id = given.user_id AND facts.id = given.id
      AND facts.terms = '{}'
    """
)


async def words_of_facts(owner: Database) -> int:
    """Give facts without terms theirs, by the role that sees every tenant; how many got some. Safe to repeat.

    Reads the table of facts once. Raises `StoreUnavailable`.
    """
    filled, last = 0, {"namespace": "", "user": "", "id": FIRST}
    async with owner.transaction(read_only=True) as tx:
        told = await pg(tx).row(_LANGUAGE)
    language = "english" if told is None else told.value
    while True:
        async with owner.transaction() as tx:
            rows = await pg(tx).rows(_WITHOUT, **last, sealed=sealing.SEALED, limit=PAGE)
            if not rows:
                return filled
            scopes = [Scope(namespace=row.namespace, user_id=row.user_id or None) for row in rows]
            keys = [term_keys(scope, row.said, language) for scope, row in zip(scopes, rows, strict=True)]
            filled += await pg(tx).count(
                _FILL,
                namespaces=[row.namespace for row in rows],
                users=[row.user_id for row in rows],
                ids=[row.id for row in rows],
                terms=["{" + ",".join(map(str, each)) + "}" for each in keys],
            )
        last = {"namespace": rows[-1].namespace, "user": rows[-1].user_id, "id": str(rows[-1].id)}
