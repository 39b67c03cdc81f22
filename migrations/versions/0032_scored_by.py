"""Checkpoints say of what their score is.

Why: the score was the mean return since the checkpoint before, by default of the whole run. Now it is of the policy in
the file, and this column has the number of episodes. The previous release leaves it null.

Revision: 0032, after 0031
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("scored_by", JSON, nullable=True))


def downgrade() -> None:
    op.drop_column("checkpoints", "scored_by")
