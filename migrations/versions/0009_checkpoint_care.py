"""Checkpoints: scores, pins, marks of damage and of deleted files.

Why: retention keeps the best and the pinned ones, skips damaged ones, and removes files only after the row is
marked, so it can be interrupted anywhere. The previous release fills none of these columns, and
removes files before it marks a row; the files are then removed a second time, which does no harm.

Revision: 0009, after 0008
"""

import sqlalchemy as sa
from alembic import op

from server.kit.db.base import Json

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COLUMNS = ("scores", "merit", "pinned_at", "damaged_at", "damage", "purged_at")
UNPURGED = "deleted_at IS NOT NULL AND purged_at IS NULL"


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("scores", Json, nullable=True))
    op.add_column("checkpoints", sa.Column("merit", sa.Double(), nullable=True))
    op.add_column("checkpoints", sa.Column("pinned_at", sa.Double(), nullable=True))
    op.add_column("checkpoints", sa.Column("damaged_at", sa.Double(), nullable=True))
    op.add_column("checkpoints", sa.Column("damage", sa.Text(), nullable=True))
    op.add_column("checkpoints", sa.Column("purged_at", sa.Double(), nullable=True))
    op.execute(sa.text("UPDATE checkpoints SET purged_at = deleted_at WHERE deleted_at IS NOT NULL"))
    unpurged = sa.text(UNPURGED)
    op.create_index(
        "ix_checkpoints_unpurged", "checkpoints", ["deleted_at"], sqlite_where=unpurged, postgresql_where=unpurged
    )


def downgrade() -> None:
    op.drop_index("ix_checkpoints_unpurged", "checkpoints")
    for column in COLUMNS:
        op.drop_column("checkpoints", column)
