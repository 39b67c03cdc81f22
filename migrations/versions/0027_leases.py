"""Leases and progress of live attempts in a narrow table, and a number that users' requests raise.

Why: a heartbeat wrote `attempts`, `runs` and `workers`: 3.3 KB of write-ahead log, and 20 indexes, because `runs.step`,
`runs.updated_at`, `attempts.lease_expires_at` and `workers.heartbeat_at` are in indexes. Now it writes one row of
`leases` in place. `runs.requests` tells the supervisor with the same statement whether there is anything to read.

Rolling upgrades (workers first, the api last; docs/operations.md):

- A worker of the previous release writes its lease to `attempts.lease_expires_at` and its step to `runs.step`, and has
  no row in `leases`. This release's controller takes runs from it by that column; readers take the step from `runs`.
- A worker of this release holds its lease in `leases`. The previous release's controller does not know it, so the
  worker also writes `attempts.lease_expires_at`, `attempts.heartbeat_at`, `runs.step` and `workers.heartbeat_at`: every
  5 minutes, and 15 minutes ahead. A controller of the previous release therefore never takes a run from such a worker
  while it lives, and takes it 15 minutes after its death; this release's controller after one lease, as ever. An api of
  the previous release shows a step that is up to 5 minutes old, and counts busy workers as silent between two writes.
- An attempt of this release that a controller of the previous release has ended leaves its row in `leases` behind. The
  attempt's next heartbeat is refused because of `runs`; this release's controller deletes the row when it expires.
- An api of the previous release records an event with each request and does not raise `runs.requests`. Supervisors of
  this release therefore read the requests also when `runs.event_seq` has moved.

Revision: 0027, after 0026
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(80), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("renewed_at", sa.Double(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("step_at", sa.Double(), nullable=False),
        sa.Column("time_spent", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_leases_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name="pk_leases"),
        postgresql_with={"fillfactor": "20"},
    )
    op.add_column("runs", sa.Column("requests", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.execute(
        "UPDATE runs SET step = (SELECT step FROM leases WHERE run_id = id) WHERE id IN (SELECT run_id FROM leases)"
    )
    op.drop_column("runs", "requests")
    op.drop_table("leases")
