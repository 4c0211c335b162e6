"""Effects that Redis has not been informed of yet are rows; see `db.undelivered`."""

from alembic import op

revision = "0020_pre_undelivered"
down_revision = "0019_pre_namespace_turns"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE aftermind.undelivered (
        namespace text COLLATE "C" NOT NULL,
        user_id text COLLATE "C" NOT NULL,
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        kind text NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now()
    )
    """,
    "CREATE INDEX undelivered_owner ON aftermind.undelivered (namespace, user_id)",
    "CREATE INDEX events_undelivered ON aftermind.events (namespace, user_id) WHERE published_at IS NULL",
)


def upgrade() -> None:
    """Add the table and the indexes."""
    for statement in STATEMENTS:
        op.execute(statement)
