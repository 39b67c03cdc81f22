"""Runs are compared and deleted: extremes of metrics, fingerprints of attempts, and runs whose files must be removed.

Why: a list of runs shows and sorts by the highest or lowest value of a metric without reading its history; a
deleted run has no row any more, but files that the controller must still remove; and release, libraries and machine of
a run are known only while it trains. The previous release does not write the columns: if it has written a newer value,
`extremes_step` differs from `step`, and the controller computes the extremes again.

Revision: 0013, after 0012
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
STALE = sa.text("extremes_step IS NULL OR extremes_step <> step")
UNPURGED = sa.text("purge_at IS NOT NULL")


def upgrade() -> None:
    op.add_column("attempts", sa.Column("fingerprint", JSON, nullable=True))
    for name in ("highest", "lowest"):
        op.add_column("latest_metrics", sa.Column(name, sa.Double(), nullable=True))
    op.add_column("latest_metrics", sa.Column("extremes_step", sa.BigInteger(), nullable=True))
    op.create_index("ix_latest_metrics_key_run_id", "latest_metrics", ["key", "run_id"])
    op.create_index("ix_latest_metrics_stale", "latest_metrics", ["run_id"], sqlite_where=STALE, postgresql_where=STALE)
    op.create_table(
        "deleted_runs",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("project", sa.String(64), server_default="default", nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=False),
        sa.Column("purge_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deleted_runs")),
    )
    op.create_index(
        "ix_deleted_runs_unpurged", "deleted_runs", ["purge_at"], sqlite_where=UNPURGED, postgresql_where=UNPURGED
    )


def downgrade() -> None:
    op.drop_table("deleted_runs")
    op.drop_index("ix_latest_metrics_stale", "latest_metrics")
    op.drop_index("ix_latest_metrics_key_run_id", "latest_metrics")
    for name in ("extremes_step", "lowest", "highest"):
        op.drop_column("latest_metrics", name)
    op.drop_column("attempts", "fingerprint")
