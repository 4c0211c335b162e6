"""How long a namespace keeps its episodes; tombstones of a policy, which go sooner than those of somebody's wish."""

from alembic import op

revision = "0005_pre_retention"
down_revision = "0004_pre_tenants"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE aftermind.retention (
        namespace text COLLATE "C" PRIMARY KEY,
        max_age interval,
        max_episodes integer,
        keep_important boolean NOT NULL DEFAULT false,
        archive text,
        updated_at timestamptz NOT NULL DEFAULT now(),
        ran_at timestamptz
    )
    """,
    "ALTER TABLE aftermind.tombstones ADD COLUMN by_policy boolean NOT NULL DEFAULT false",
    "CREATE INDEX users_forgot ON aftermind.users (namespace, user_id) WHERE forgets > 0",
    # They are looked for by age alone, and lie in the order in which they came.
    "CREATE INDEX job_attempts_started ON aftermind.job_attempts USING brin (started_at) WITH (pages_per_range = 32)",
)


def upgrade() -> None:
    """Add table, column and indexes."""
    for statement in STATEMENTS:
        op.execute(statement)
