"""The present lessons of the runs' environment parameters, and the changes that users request.

Why: the API shows the criterion of a lesson, and accepts other lessons and values for a live run. The previous release
ignores both tables.

Revision: 0004, after 0003
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "run_parameters",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("parameters", JSON, nullable=False),
        sa.Column("edit", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_run_parameters_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_parameters")),
    )
    op.create_table(
        "parameter_edits",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("parameter", sa.String(200), nullable=False),
        sa.Column("change", JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_parameter_edits_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_parameter_edits")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("parameter_edits")
    op.drop_table("run_parameters")
