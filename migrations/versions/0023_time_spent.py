"""Where the newest time of an attempt went.

Why: `ludus run show` says what holds a run back. The previous release does not write the column.

Revision: 0023, after 0022
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("attempts", sa.Column("time_spent", JSON, nullable=True))


def downgrade() -> None:
    op.drop_column("attempts", "time_spent")
