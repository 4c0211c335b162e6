"""What was said is kept as claims, from which what is believed is folded; see `claims.decide`.

Facts of former releases count as claims of themselves, the first time that something is said of their subject.
"""

from alembic import op

revision = "0011_pre_claims"
down_revision = "0010_pre_found_facts"
branch_labels = None
depends_on = None

STATEMENTS = (
    # `about` is the subject as it is compared, and the owner, as a number (stores.postgres.terms). The sources are no
    # rows of their own: nobody asks for a claim by its episode but a forget, which goes through the owner's.
    """
    CREATE TABLE aftermind.claims (
        namespace text COLLATE "C" NOT NULL,
        user_id text COLLATE "C" NOT NULL,
        id uuid NOT NULL,
        about bigint NOT NULL,
        subject text NOT NULL,
        predicate text COLLATE "C" NOT NULL,
        object text NOT NULL,
        operation text NOT NULL,
        said_at timestamptz NOT NULL,
        valid_from timestamptz,
        valid_to timestamptz,
        confidence double precision NOT NULL,
        cardinality text,
        sources uuid[] NOT NULL,
        place integer NOT NULL,
        extractor text NOT NULL,
        PRIMARY KEY (namespace, user_id, id)
    )
    """,
    "CREATE INDEX claims_about ON aftermind.claims (namespace, user_id, about)",
)


def upgrade() -> None:
    """Add the table and its index."""
    for statement in STATEMENTS:
        op.execute(statement)
