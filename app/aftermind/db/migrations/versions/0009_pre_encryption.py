"""Keys of namespaces whose content is encrypted, each wrapped by a key that is not in the database."""

from alembic import op

revision = "0009_pre_encryption"
down_revision = "0008_pre_audit"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.execute(
        """
        CREATE TABLE aftermind.data_keys (
            namespace text COLLATE "C" NOT NULL,
            id text COLLATE "C" NOT NULL,
            generation integer NOT NULL,
            state text NOT NULL,
            wrapped bytea NOT NULL,
            created_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (namespace, id)
        )
        """
    )
