"""The learning team of a run's self-play, and the present ratings of its policies.

Why: the metrics have means of summaries, and the first of them comes late; the ledger of matches does not have the
learning team. The previous release leaves the column empty and never reads it.

Revision: 0014, after 0013
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("runs", sa.Column("self_play", JSON, nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "self_play")
