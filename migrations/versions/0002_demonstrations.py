"""Demonstrations, and which runs use which.

Why: recordings of good behavior are uploaded and named in configurations by id; a demonstration that a run needs must
not be deleted. The previous release ignores both tables.

Revision: 0002, after 0001
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def ordered_text(length: int) -> sa.String:
    """Compare by code points in both databases."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "demonstrations",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", ordered_text(200), nullable=False),
        sa.Column("behavior", ordered_text(200), nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("format", sa.String(16), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("transitions", sa.BigInteger(), nullable=False),
        sa.Column("episodes", sa.BigInteger(), nullable=False),
        sa.Column("mean_return", sa.Double(), nullable=True),
        sa.Column("summary", JSON, nullable=False),
        sa.Column("origin", JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_demonstrations")),
    )
    op.create_index(op.f("ix_demonstrations_created_at"), "demonstrations", ["created_at"])
    op.create_table(
        "run_demonstrations",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("demonstration_id", sa.String(40), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_run_demonstrations_run_id_runs"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["demonstration_id"],
            ["demonstrations.id"],
            name=op.f("fk_run_demonstrations_demonstration_id_demonstrations"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run_id", "demonstration_id", name=op.f("pk_run_demonstrations")),
    )
    op.create_index(op.f("ix_run_demonstrations_demonstration_id"), "run_demonstrations", ["demonstration_id"])


def downgrade() -> None:
    op.drop_table("run_demonstrations")
    op.drop_table("demonstrations")
