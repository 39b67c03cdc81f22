"""Changes of live runs: amendments of their configurations, and requests for a checkpoint now.

Why: each change of a run is a row, so its trainer applies it once and users can read the history; and
a request for a checkpoint survives the worker that should write it. The previous release ignores these tables: it
trains with `runs.config`, which is the changed configuration, and writes no checkpoints on request.

Revision: 0010, after 0009
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def of_run(table: str) -> sa.ForeignKeyConstraint:
    """Rows of a run are deleted with it."""
    return sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f(f"fk_{table}_run_id_runs"), ondelete="CASCADE")


def upgrade() -> None:
    op.create_table(
        "amendments",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("changes", JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        of_run("amendments"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_amendments")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "amended_runs",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("original", JSON, nullable=False),
        sa.Column("applied", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        of_run("amended_runs"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_amended_runs")),
    )
    op.create_table(
        "checkpoint_requests",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("answered_at", sa.Double(), nullable=True),
        sa.Column("checkpoint_id", sa.String(40), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        of_run("checkpoint_requests"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_checkpoint_requests")),
    )
    pending = sa.text("answered_at IS NULL")
    op.create_index(
        "ix_checkpoint_requests_pending",
        "checkpoint_requests",
        ["run_id"],
        sqlite_where=pending,
        postgresql_where=pending,
    )


def downgrade() -> None:
    op.drop_table("checkpoint_requests")
    op.drop_table("amended_runs")
    op.drop_table("amendments")
