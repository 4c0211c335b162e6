"""Erasure without wall clocks: a number for each erasure.

`next_generation` belongs to the owner of the schema, so that no other role can set the sequence back.
"""

from alembic import op

revision = "0023_pre_generations"
down_revision = "0022_pre_edited"
branch_labels = None
depends_on = None

STATEMENTS = (
    "CREATE SEQUENCE aftermind.generation",
    "SELECT setval('aftermind.generation', 1)",
    # `known` is the highest number that anybody was given, where a failover lost the last ones of the sequence.
    """
    CREATE FUNCTION aftermind.next_generation(known bigint) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DECLARE number bigint := nextval('aftermind.generation');
    BEGIN
        IF number <= known THEN
            PERFORM pg_advisory_xact_lock(hashtextextended('aftermind.generation', 0));
            number := nextval('aftermind.generation');
            IF number <= known THEN
                number := setval('aftermind.generation', known + 1);
            END IF;
        END IF;
        RETURN number;
    END
    $$
    """,
    # Agents of the former release name neither column. They deliver their erasures themselves, and what those cover is
    # decided by time: a number would cover what an agent of this release accepts before it has heard of the number.
    "ALTER TABLE aftermind.tombstones ADD COLUMN generation bigint NOT NULL DEFAULT 0",
    "ALTER TABLE aftermind.tombstones ADD COLUMN delivered boolean NOT NULL DEFAULT true",
    "CREATE INDEX tombstones_undelivered ON aftermind.tombstones (namespace, user_id) WHERE NOT delivered",
    # What a tombstone covers: the same as in stores.postgres.forgetting.
    """
    CREATE OR REPLACE FUNCTION aftermind.unsay_forgotten() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF NEW.session_id IS NULL AND NEW.before IS NULL AND cardinality(NEW.ids) = 0 THEN
            DELETE FROM aftermind.claims WHERE namespace = NEW.namespace AND user_id = NEW.user_id;
        ELSE
            PERFORM aftermind.unsay(NEW.namespace, NEW.user_id, ARRAY(
                SELECT id FROM aftermind.episodes
                WHERE namespace = NEW.namespace AND user_id = NEW.user_id
                  AND (id = ANY (NEW.ids) OR cardinality(NEW.ids) = 0
                       AND (NEW.session_id IS NULL OR session_id = NEW.session_id)
                       AND (NEW.before IS NULL OR occurred_at < NEW.before))));
        END IF;
        RETURN NULL;
    END
    $$
    """,
)


def upgrade() -> None:
    """Add the sequence, its function and the columns."""
    for statement in STATEMENTS:
        op.execute(statement)
