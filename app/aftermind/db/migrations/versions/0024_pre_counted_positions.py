"""Order without wall clocks: where the counting of a session began.

A migration of its own: one that locks two tables at once deadlocks with running workers.
"""

from alembic import op

revision = "0024_pre_counted_positions"
down_revision = "0023_pre_generations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.execute("ALTER TABLE aftermind.episodes ADD COLUMN counted_from bigint, ADD COLUMN shift bigint")
