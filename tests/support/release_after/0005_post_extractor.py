"""Contract: the old name of a renamed column, which no process of a supported release uses any more."""

from alembic import op

revision = "0005_post_extractor"
down_revision = "0004_pre_confidence"
branch_labels = None
depends_on = None

STATEMENTS = (
    "DROP TRIGGER copy_mined_by ON aftermind.extractions",
    "DROP FUNCTION aftermind.copy_mined_by",
    "ALTER TABLE aftermind.extractions DROP COLUMN extractor, ALTER COLUMN mined_by SET NOT NULL",
)


def upgrade() -> None:
    """Drop the trigger and the column."""
    for statement in STATEMENTS:
        op.execute(statement)
