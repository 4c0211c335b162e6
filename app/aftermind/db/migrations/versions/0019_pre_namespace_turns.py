"""The fair order within a namespace: a claim takes jobs of namespaces in turn, however many users each has."""

from alembic import op

revision = "0019_pre_namespace_turns"
down_revision = "0018_pre_provenance"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    op.execute(
        """
        CREATE INDEX jobs_namespace_turn ON aftermind.jobs (kind, namespace, turn, run_at)
        WHERE state IN ('queued', 'retrying') AND turn IS NOT NULL
        """
    )
