"""Cordons: worker hosts and slots that take no run.

Why: `ludus worker cordon` and `drain` keep runs away from a host before its maintenance. The previous release's workers
do not read the table: cordon hosts whose workers are of this release.

Revision: 0024, after 0023
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

NAME = sa.String(200).with_variant(sa.String(200, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "cordons",
        sa.Column("name", NAME, nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_cordons")),
    )


def downgrade() -> None:
    op.drop_table("cordons")
