"""Assessments: the verdicts of runs that judge policies; and aliases, movable names of checkpoints.

Why: a gate's verdict must survive its worker, and a pipeline uses one name for the best policy so far. The previous
release ignores both tables; it may remove checkpoints that have an alias.

Revision: 0006, after 0005
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    json = sa.JSON().with_variant(JSONB(), "postgresql")
    op.create_table(
        "run_assessments",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.String(16), nullable=True),
        sa.Column("games", sa.Integer(), nullable=False),
        sa.Column("result", json, nullable=False),
        sa.Column("state", json, nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_run_assessments_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_assessments")),
    )
    op.create_table(
        "checkpoint_aliases",
        sa.Column("name", sa.String(200).with_variant(sa.String(200, collation="C"), "postgresql"), nullable=False),
        sa.Column("project", sa.String(64), nullable=False, server_default="default"),
        sa.Column("checkpoint_id", sa.String(40), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("moved_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"],
            ["checkpoints.id"],
            name=op.f("fk_checkpoint_aliases_checkpoint_id_checkpoints"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("name", "project", name=op.f("pk_checkpoint_aliases")),
    )
    op.create_index(op.f("ix_checkpoint_aliases_checkpoint_id"), "checkpoint_aliases", ["checkpoint_id"])


def downgrade() -> None:
    op.drop_table("checkpoint_aliases")
    op.drop_table("run_assessments")
