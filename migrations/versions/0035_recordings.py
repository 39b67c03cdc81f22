"""Recordings of simulators' sessions.

Why: the flight recorder keeps what sessions sent and got as artifacts of a run; each has a row.

Rolling upgrades: a worker of the previous release records nothing.

Revision: 0035, after 0034
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "recordings",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("run_id", sa.String(40), sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("session_id", sa.String(64), nullable=False),
        sa.Column("simulator", sa.BigInteger(), nullable=False),
        sa.Column("carrier", sa.String(16), nullable=False),
        sa.Column("behaviors", JSON, nullable=False),
        sa.Column("cause", sa.String(16), nullable=False),
        sa.Column("code", sa.String(64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("frames", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    op.create_index("ix_recordings_run_id", "recordings", ["run_id"])
    op.create_index("ix_recordings_created_at", "recordings", ["created_at"])


def downgrade() -> None:
    op.drop_table("recordings")
