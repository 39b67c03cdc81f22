"""Runs whose games wait are taken before others.

Why: a run without a game trained nothing, but held a slot until its grace was over, while the game of another run
waited. Gateways write here until when a game counts as waiting. The index has the few waiting runs that have one.

Rolling upgrades: the previous release leaves the column null, and takes runs in the former order. A worker of it that
is asked to lend a slot hands its run back as if it were drained.

Revision: 0033, after 0032
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("awaited_until", sa.Double(), nullable=True))
    waiting = sa.text("state || '' IN ('QUEUED', 'RECOVERING')")
    op.create_index("ix_runs_awaited", "runs", ["awaited_until"], sqlite_where=waiting, postgresql_where=waiting)


def downgrade() -> None:
    op.drop_index("ix_runs_awaited", "runs")
    op.drop_column("runs", "awaited_until")
