"""A dead turn can be replayed with other messages, which lie beside its own until then.

A transaction of its own: with `episodes` in the same one, it and a worker that goes on meanwhile lock each other out.
"""

from alembic import op

revision = "0022_pre_edited"
down_revision = "0021_pre_reembedding"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.execute("ALTER TABLE aftermind.jobs ADD COLUMN edited bytea")
