"""Webhooks, and what is to be delivered to them."""

from alembic import op

revision = "0007_pre_webhooks"
down_revision = "0006_pre_api_keys"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE aftermind.webhooks (
        namespace text COLLATE "C" NOT NULL,
        id uuid NOT NULL,
        url text NOT NULL,
        events text[] NOT NULL DEFAULT '{}',
        secret bytea NOT NULL,
        description text NOT NULL DEFAULT '',
        is_disabled boolean NOT NULL DEFAULT false,
        reason text,
        failures integer NOT NULL DEFAULT 0,
        failing_since timestamptz,
        due_at timestamptz NOT NULL DEFAULT now(),
        delivered_at timestamptz,
        created_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (namespace, id)
    ) WITH (fillfactor = 70)
    """,
    # No key to `webhooks`: a memory's commit must not fail because a webhook is removed at that moment. The key to
    # `events` takes deliveries along when events are forgotten or old.
    """
    CREATE TABLE aftermind.webhook_deliveries (
        namespace text COLLATE "C" NOT NULL,
        user_id text COLLATE "C" NOT NULL,
        seq bigint NOT NULL,
        webhook_id uuid NOT NULL,
        is_failed boolean NOT NULL DEFAULT false,
        attempts integer NOT NULL DEFAULT 0,
        due_at timestamptz NOT NULL DEFAULT now(),
        token uuid,
        error text,
        created_at timestamptz NOT NULL DEFAULT now(),
        PRIMARY KEY (namespace, user_id, seq, webhook_id),
        FOREIGN KEY (namespace, user_id, seq) REFERENCES aftermind.events (namespace, user_id, seq) ON DELETE CASCADE
    ) WITH (fillfactor = 70)
    """,
    """
    CREATE INDEX webhook_deliveries_due ON aftermind.webhook_deliveries (namespace, webhook_id, is_failed, due_at)
    """,
)


def upgrade() -> None:
    """Create both tables."""
    for statement in STATEMENTS:
        op.execute(statement)
