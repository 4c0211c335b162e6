"""Expand: a constraint, at first for new rows only, so that no existing row is read under the table's lock."""

from alembic import op

revision = "0004_pre_confidence"
down_revision = "0003_pre_mined_by"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the constraint."""
    op.execute(
        """
        ALTER TABLE aftermind.facts
        ADD CONSTRAINT facts_confidence CHECK (confidence BETWEEN 0 AND 1) NOT VALID
        """
    )
