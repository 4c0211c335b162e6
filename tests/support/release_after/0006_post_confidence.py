"""Contract: the constraint holds for rows of the previous release too. Reads and writes continue during the check."""

from alembic import op

revision = "0006_post_confidence"
down_revision = "0005_post_extractor"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Validate the constraint."""
    op.execute("ALTER TABLE aftermind.facts VALIDATE CONSTRAINT facts_confidence")
