"""What is learned beyond facts: episodes that a profile has not seen yet, and what models have cost."""

from alembic import op

revision = "0002_pre_learning"
down_revision = "0001_pre_first"
branch_labels = None
depends_on = None

TABLES = (
    """
    CREATE TABLE aftermind.unprofiled (
        namespace text COLLATE "C" NOT NULL,
        user_id text COLLATE "C" NOT NULL,
        episode_id uuid NOT NULL,
        PRIMARY KEY (namespace, user_id, episode_id)
    )
    """,
    """
    CREATE TABLE aftermind.spending (
        namespace text COLLATE "C" NOT NULL,
        user_id text COLLATE "C" NOT NULL,
        day date NOT NULL,
        kind text COLLATE "C" NOT NULL,
        model text COLLATE "C" NOT NULL,
        calls bigint NOT NULL DEFAULT 0,
        tokens_in bigint NOT NULL DEFAULT 0,
        tokens_out bigint NOT NULL DEFAULT 0,
        cost_usd double precision NOT NULL DEFAULT 0,
        latency_ms double precision NOT NULL DEFAULT 0,
        PRIMARY KEY (namespace, day, user_id, kind, model)
    ) WITH (fillfactor = 70)
    """,
)


def upgrade() -> None:
    """Create both tables."""
    for statement in TABLES:
        op.execute(statement)
