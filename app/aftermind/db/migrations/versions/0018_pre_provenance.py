"""What a model was shown is recorded by batch, and an episode says what its turn was kept for."""

from alembic import op

revision = "0018_pre_provenance"
down_revision = "0012_pre_unsaid"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE aftermind.episodes ADD COLUMN keep text[]",
    """
    CREATE TABLE aftermind.batches (
        namespace text COLLATE "C" NOT NULL,
        user_id text COLLATE "C" NOT NULL,
        job_id uuid NOT NULL,
        kind text COLLATE "C" NOT NULL,
        session_id text COLLATE "C",
        shown uuid[] NOT NULL,
        at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (namespace, user_id, job_id)
    )
    """,
)


def upgrade() -> None:
    """Add the column and the table."""
    for statement in STATEMENTS:
        op.execute(statement)
