"""Where the newest time of an attempt went, and the newest request for its profile.

Why: `ludus run show` says what holds a run back, and `ludus run profile` asks for a profile. The previous release
does not use the columns: a profile waits until a worker of this release has the run.

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
    for name in ("time_spent", "profile"):
        op.add_column("attempts", sa.Column(name, JSON, nullable=True))


def downgrade() -> None:
    for name in ("time_spent", "profile"):
        op.drop_column("attempts", name)
