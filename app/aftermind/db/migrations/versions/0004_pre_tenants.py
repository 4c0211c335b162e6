"""Each row of the ledger says whose it is, and search has a view of its own; the policies follow in `db.tenancy`."""

from alembic import op

revision = "0004_pre_tenants"
down_revision = "0003_pre_costs"
branch_labels = None
depends_on = None

# The default lets workers of the former release go on; their rows are seen by the relay alone.
STATEMENTS = (
    """ALTER TABLE aftermind.job_attempts ADD COLUMN namespace text COLLATE "C" NOT NULL DEFAULT ''""",
    """ALTER TABLE aftermind.job_follows ADD COLUMN namespace text COLLATE "C" NOT NULL DEFAULT ''""",
    """
    UPDATE aftermind.job_attempts AS attempts SET namespace = jobs.namespace
    FROM aftermind.jobs AS jobs WHERE jobs.id = attempts.job_id
    """,
    """
    UPDATE aftermind.job_follows AS follows SET namespace = jobs.namespace
    FROM aftermind.jobs AS jobs WHERE jobs.id = follows.job_id
    """,
    # Under row-level security Postgres checks the policy before any condition whose function is not marked leakproof,
    # and then no index on terms or vectors can serve it: a search would read the whole table. The view's owner may see
    # all rows, and the view shows those of the transaction's tenant, by a function call that no index could be lured
    # by. `OFFSET 0` is left to the search: a view with it would be a wall to the index as well.
    """
    CREATE VIEW aftermind.searched AS
    SELECT id, namespace, user_id, session_id, agent_id, role, metadata, occurred_at, remembered_at, position,
           terms, embedding, indexed
    FROM aftermind.episodes
    WHERE texteq(namespace, (SELECT NULLIF(current_setting('aftermind.namespace', true), '')))
    """,
)


def upgrade() -> None:
    """Add columns and view."""
    for statement in STATEMENTS:
        op.execute(statement)
