"""The wish of an edge collector for a place in an attempt, why there is none, and the edge collectors that collect.

Why: places are opened when the first edge collector asks, so that a run without any pays nothing; `ludus run show`
lists them. The previous release does not use the columns: its workers open places at once.

Revision: 0025, after 0024
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("attempts", sa.Column("places_asked", sa.Boolean(), nullable=True))
    op.add_column("attempts", sa.Column("places_problem", sa.Text(), nullable=True))
    op.add_column("attempts", sa.Column("edge_collectors", JSON, nullable=True))


def downgrade() -> None:
    for name in ("places_asked", "places_problem", "edge_collectors"):
        op.drop_column("attempts", name)
