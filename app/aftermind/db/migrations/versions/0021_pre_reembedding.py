"""Room for the vectors of a second embedder, and its adoption by a database that has no vectors.

`meta` names the embedder of `embedding` under the key `vectors`, and that of `embedding_standby` under
`standby_vectors` while a re-embedding is under way.
"""

from alembic import op

revision = "0021_pre_reembedding"
down_revision = "0020_pre_undelivered"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE aftermind.episodes ADD COLUMN embedding_standby halfvec",
    # Workers may not write `meta`. Of one dimension alone: another one changes the table, which is its owner's.
    """
    CREATE FUNCTION aftermind.adopt_embedder(wanted text, dimension integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF EXISTS (SELECT FROM aftermind.meta WHERE key = 'vectors' AND value = wanted) THEN
            RETURN true;
        ELSIF EXISTS (SELECT FROM aftermind.meta WHERE key = 'standby_vectors')
              OR NOT EXISTS (SELECT FROM aftermind.meta WHERE key = 'dimension' AND value = dimension::text)
              OR EXISTS (SELECT FROM aftermind.episodes WHERE embedding IS NOT NULL) THEN
            RETURN false;
        END IF;
        LOCK TABLE aftermind.episodes IN SHARE ROW EXCLUSIVE MODE;
        IF EXISTS (SELECT FROM aftermind.episodes WHERE embedding IS NOT NULL) THEN
            RETURN false;
        END IF;
        INSERT INTO aftermind.meta (key, value) VALUES ('vectors', wanted), ('embedder', split_part(wanted, E'\\n', 1))
        ON CONFLICT (key) DO UPDATE SET value = excluded.value;
        RETURN true;
    END
    $$
    """,
    "REVOKE ALL ON FUNCTION aftermind.adopt_embedder FROM PUBLIC",
)


def upgrade() -> None:
    """Add the column and the function."""
    for statement in STATEMENTS:
        op.execute(statement)
