"""Uploaded checkpoints, and the checkpoints from which runs start.

Why: a behavior may start from the networks of an uploaded checkpoint of ML-Agents, or of another run. Neither may be
deleted while a run that has not ended may still fetch it. The previous release ignores both tables.

Revision: 0003, after 0002
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def ordered_text(length: int) -> sa.String:
    """Compare by code points in both databases."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "uploaded_checkpoints",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", ordered_text(200), nullable=False),
        sa.Column("behavior", ordered_text(200), nullable=True),
        sa.Column("format", sa.String(16), nullable=False),
        sa.Column("modules", JSON, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("file", sa.String(200), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploaded_checkpoints")),
    )
    op.create_index(op.f("ix_uploaded_checkpoints_created_at"), "uploaded_checkpoints", ["created_at"])
    op.create_table(
        "run_initial_checkpoints",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("checkpoint_id", sa.String(40), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_run_initial_checkpoints_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "checkpoint_id", name=op.f("pk_run_initial_checkpoints")),
    )
    op.create_index(op.f("ix_run_initial_checkpoints_checkpoint_id"), "run_initial_checkpoints", ["checkpoint_id"])


def downgrade() -> None:
    op.drop_table("run_initial_checkpoints")
    op.drop_table("uploaded_checkpoints")
