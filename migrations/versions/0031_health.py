"""The findings of a run's trainer: why it does not learn, or not as it should.

Why: a run whose reward was always 0, or whose episodes never ended, succeeded without a word.

Revision: 0031, after 0030
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    op.add_column("runs", sa.Column("health", json, nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "health")
