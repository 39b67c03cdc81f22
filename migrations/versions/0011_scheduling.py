"""Demands of runs on workers, and the owners that runs count for.

Why: a free slot takes the best run that it may run (priority, then the owner with the fewest, then age), and must find
it without reading all waiting runs. The previous release leaves the columns at their defaults and claims as before.

Revision: 0011, after 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

WAITING = sa.text("state || '' IN ('QUEUED', 'RECOVERING')")
LEASED = sa.text("state || '' IN ('STARTING', 'RUNNING', 'PAUSING', 'STOPPING')")


def ordered_text(length: int) -> sa.String:
    """Compare by code points in both databases."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("runs", sa.Column("owner", ordered_text(200), nullable=False, server_default=""))
    op.add_column("runs", sa.Column("demand", ordered_text(400), nullable=False, server_default=""))
    op.add_column("runs", sa.Column("waits_for", sa.Text(), nullable=True))
    op.create_index(
        "ix_runs_turn",
        "runs",
        ["owner", "demand", "priority", "queued_at", "id"],
        sqlite_where=WAITING,
        postgresql_where=WAITING,
    )
    op.create_index("ix_runs_leased", "runs", ["owner"], sqlite_where=LEASED, postgresql_where=LEASED)


def downgrade() -> None:
    op.drop_index("ix_runs_leased", "runs")
    op.drop_index("ix_runs_turn", "runs")
    for column in ("waits_for", "demand", "owner"):
        op.drop_column("runs", column)
