"""What agents and workers of the former release forget or undo is no longer said either.

Their statements do not name `claims`: what is left of them would hold what was forgotten, and the next claim about the
same would bring its fact back. So the database takes claims away where a tombstone is written or an episode is marked,
whoever does it. This release's statements do it too, and find nothing left to do.
"""

from alembic import op

revision = "0012_pre_unsaid"
down_revision = "0011_pre_claims"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE FUNCTION aftermind.unsay(space text, whose text, gone uuid[]) RETURNS void
    LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
        DELETE FROM aftermind.claims
        WHERE namespace = space AND user_id = whose AND sources <> '{}' AND sources <@ gone;
        UPDATE aftermind.claims SET sources = ARRAY(SELECT each FROM unnest(sources) AS each WHERE each <> ALL (gone))
        WHERE namespace = space AND user_id = whose AND sources && gone;
    $$
    """,
    # What a tombstone covers: the same as in stores.postgres.forgetting.
    """
    CREATE FUNCTION aftermind.unsay_forgotten() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF NEW.session_id IS NULL AND NEW.before IS NULL AND cardinality(NEW.ids) = 0 THEN
            DELETE FROM aftermind.claims WHERE namespace = NEW.namespace AND user_id = NEW.user_id;
        ELSE
            PERFORM aftermind.unsay(NEW.namespace, NEW.user_id, ARRAY(
                SELECT id FROM aftermind.episodes
                WHERE namespace = NEW.namespace AND user_id = NEW.user_id AND remembered_at <= NEW.at
                  AND (id = ANY (NEW.ids) OR cardinality(NEW.ids) = 0
                       AND (NEW.session_id IS NULL OR session_id = NEW.session_id)
                       AND (NEW.before IS NULL OR occurred_at < NEW.before))));
        END IF;
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE TRIGGER unsay AFTER INSERT ON aftermind.tombstones
    FOR EACH ROW EXECUTE FUNCTION aftermind.unsay_forgotten()
    """,
    """
    CREATE FUNCTION aftermind.unsay_undone() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        PERFORM aftermind.unsay(NEW.namespace, NEW.user_id, ARRAY[NEW.id]);
        RETURN NULL;
    END
    $$
    """,
    """
    CREATE TRIGGER unsay AFTER UPDATE OF mark ON aftermind.episodes
    FOR EACH ROW WHEN (NEW.mark = 'undone' AND OLD.mark IS DISTINCT FROM 'undone')
    EXECUTE FUNCTION aftermind.unsay_undone()
    """,
)


def upgrade() -> None:
    """Add the functions and their triggers."""
    for statement in STATEMENTS:
        op.execute(statement)
