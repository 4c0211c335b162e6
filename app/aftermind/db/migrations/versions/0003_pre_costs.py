"""What an attempt cost beside its tokens: how many model calls, and how long they took."""

from alembic import op

revision = "0003_pre_costs"
down_revision = "0002_pre_learning"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both columns."""
    op.execute(
        """
        ALTER TABLE aftermind.job_attempts
            ADD COLUMN calls integer NOT NULL DEFAULT 0,
            ADD COLUMN latency_ms double precision NOT NULL DEFAULT 0
        """
    )
