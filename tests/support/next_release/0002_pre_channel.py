"""Expand: a new column."""

from alembic import op

revision = "0002_pre_channel"
down_revision = "0001_initial"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. A constant default is stored in the catalog, so no row is rewritten."""
    op.execute("ALTER TABLE aftermind.episodes ADD COLUMN channel text NOT NULL DEFAULT 'chat'")
