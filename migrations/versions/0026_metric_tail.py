"""Metrics are appended to a tail of one row per summary, and those of ended runs move to Parquet files.

Why: a summary of 25 metrics took 53 statements and rewrote 25 chunks, 118 kB of WAL for 600 bytes. Now it is one row,
which the controller packs into chunks later.

The previous release works on: it writes chunks and newest values itself, without the extremes of chunks, and readers of
this release join both; an attempt belongs to one worker, so no chunk has two writers. It does not read the tail and the
files. An older api shows the points that newer workers append once a controller of this release has packed them: after
a minute at most, at once when the run ends. Newest values that an older worker has written meanwhile stay the newest.
A controller archives nothing in its first hour, so an api that is replaced by then misses no file.

Revision: 0026, after 0025
"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

OPEN = sa.text("count < 512")


def upgrade() -> None:
    op.create_table(
        "metric_tail",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("points", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_metric_tail_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "number", name=op.f("pk_metric_tail")),
    )
    op.create_table(
        "metric_archives",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("path", sa.String(200), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("points", sa.BigInteger(), nullable=False),
        sa.Column("thinned_to", sa.Integer(), nullable=True),
        sa.Column("archived_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_metric_archives_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_metric_archives")),
    )
    for name in ("highest", "lowest"):
        op.add_column("metric_chunks", sa.Column(name, sa.Double(), nullable=True))
    op.create_index("ix_metric_chunks_run_id_last_step", "metric_chunks", ["run_id", "last_step"])
    op.create_index(
        "ix_metric_chunks_open", "metric_chunks", ["run_id", "attempt"], sqlite_where=OPEN, postgresql_where=OPEN
    )


def downgrade() -> None:
    op.drop_index("ix_metric_chunks_open", "metric_chunks")
    op.drop_index("ix_metric_chunks_run_id_last_step", "metric_chunks")
    for name in ("lowest", "highest"):
        op.drop_column("metric_chunks", name)
    op.drop_table("metric_archives")
    op.drop_table("metric_tail")
