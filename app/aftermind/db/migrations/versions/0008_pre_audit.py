"""What operators looked at, changed and deleted: rows that chain, and the head of each chain."""

from alembic import op

revision = "0008_pre_audit"
down_revision = "0007_pre_webhooks"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE aftermind.audit (
        namespace text COLLATE "C" NOT NULL,
        seq bigint NOT NULL,
        at timestamptz NOT NULL,
        actor text NOT NULL,
        action text NOT NULL,
        user_id text COLLATE "C",
        detail text NOT NULL,
        key_id text NOT NULL,
        mac bytea NOT NULL,
        PRIMARY KEY (namespace, seq)
    )
    """,
    """
    CREATE TABLE aftermind.audit_heads (
        namespace text COLLATE "C" PRIMARY KEY,
        seq bigint NOT NULL,
        mac bytea NOT NULL,
        pruned_to bigint NOT NULL DEFAULT 0,
        pruned_mac bytea NOT NULL DEFAULT '',
        key_id text NOT NULL DEFAULT '',
        seal bytea NOT NULL DEFAULT ''
    )
    """,
)


def upgrade() -> None:
    """Add both tables."""
    for statement in STATEMENTS:
        op.execute(statement)
