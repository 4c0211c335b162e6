"""Expand: a renamed column. The new name is added; a trigger keeps both equal while both releases write."""

from alembic import op

revision = "0003_pre_mined_by"
down_revision = "0002_pre_channel"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE aftermind.extractions ADD COLUMN mined_by text",
    """
    CREATE FUNCTION aftermind.copy_mined_by() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF TG_OP = 'UPDATE' AND NEW.extractor IS DISTINCT FROM OLD.extractor THEN
            NEW.mined_by := NEW.extractor;
        ELSIF TG_OP = 'UPDATE' AND NEW.mined_by IS DISTINCT FROM OLD.mined_by THEN
            NEW.extractor := NEW.mined_by;
        ELSE
            NEW.mined_by := coalesce(NEW.mined_by, NEW.extractor);
            NEW.extractor := coalesce(NEW.extractor, NEW.mined_by);
        END IF;
        RETURN NEW;
    END
    $$
    """,
    """
    CREATE TRIGGER copy_mined_by BEFORE INSERT OR UPDATE ON aftermind.extractions
    FOR EACH ROW EXECUTE FUNCTION aftermind.copy_mined_by()
    """,
    "UPDATE aftermind.extractions SET mined_by = extractor",
)


def upgrade() -> None:
    """Add the column and the trigger, and fill in existing rows."""
    for statement in STATEMENTS:
        op.execute(statement)
