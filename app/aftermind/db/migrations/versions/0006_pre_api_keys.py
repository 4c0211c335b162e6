"""Keys to the HTTP service."""

from alembic import op

revision = "0006_pre_api_keys"
down_revision = "0005_pre_retention"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE aftermind.api_keys (
        namespace text COLLATE "C" NOT NULL,
        id text COLLATE "C" NOT NULL,
        name text NOT NULL,
        rights text[] NOT NULL,
        secret_sha256 bytea NOT NULL,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        expires_at timestamptz,
        revoked_at timestamptz,
        PRIMARY KEY (id)
    )
    """,
    "CREATE INDEX api_keys_of ON aftermind.api_keys (namespace, created_at)",
    # A request shows a key before its tenant is known. These two see every tenant's rows, with their owner's rights,
    # and give out one row for the id of a key, and whether there is any at all.
    """
    CREATE FUNCTION aftermind.api_key(wanted text) RETURNS SETOF aftermind.api_keys
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS 'SELECT * FROM aftermind.api_keys WHERE id = wanted'
    """,
    """
    CREATE FUNCTION aftermind.has_api_keys() RETURNS boolean
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    AS 'SELECT EXISTS (SELECT FROM aftermind.api_keys)'
    """,
)


def upgrade() -> None:
    """Add the table and its two doors."""
    for statement in STATEMENTS:
        op.execute(statement)
