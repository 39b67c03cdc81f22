"""The kind of a slot, and an index in which slots are found by it.

Why: a slot that asked for a run and found none read all slots, to tell whether another one serves what waits, and the
controller woke every idle slot where slots differ: they share one queue, and any of them hears its messages. With the
kind in its row, slots of a kind have a queue of their own, and each kind is looked up in the index, however many slots
there are. The index on `heartbeat_at` goes: every query compares it with the renewal of a lease, so none used it, and
each beat of an idle slot wrote it.

Rolling upgrades: a slot of the previous release has no kind and hears the messages for all slots. The controller wakes
it with as many of them as there are idle slots, as before. A controller of the previous release wakes the slots of this
one likewise.

Revision: 0028, after 0027
"""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    kind = sa.String(16).with_variant(sa.String(16, collation="C"), "postgresql")
    op.add_column("workers", sa.Column("kind", kind, nullable=True))
    op.drop_index("ix_workers_heartbeat_at", "workers")
    listed = sa.text("stopped_at IS NULL")
    op.create_index(
        "ix_workers_kind", "workers", ["kind", "run_id", "heartbeat_at"], sqlite_where=listed, postgresql_where=listed
    )


def downgrade() -> None:
    op.drop_index("ix_workers_kind", "workers")
    op.create_index("ix_workers_heartbeat_at", "workers", ["heartbeat_at"])
    op.drop_column("workers", "kind")
