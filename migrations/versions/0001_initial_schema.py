"""The first schema.

Why: the system of record as the first release needs it. There is no previous release that must continue to work.

Revision: 0001, after nothing
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
WAITING = sa.text("state IN ('QUEUED', 'RECOVERING')")


def ordered_text(length: int) -> sa.String:
    """Compare by code points in both databases."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "config_versions",
        sa.Column("name", ordered_text(200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("document", JSON, nullable=False),
        sa.Column("resolved", JSON, nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_config_versions")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("scope", sa.String(200), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("response", JSON, nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"])

    op.create_table(
        "runs",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", ordered_text(200), nullable=False),
        sa.Column("tags", JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stop_reason", sa.String(32), nullable=True),
        sa.Column("stop_detail", sa.Text(), nullable=True),
        sa.Column("config_name", sa.String(200), nullable=True),
        sa.Column("config_version", sa.Integer(), nullable=True),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("intent", sa.String(16), nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("restarts_without_progress", sa.Integer(), nullable=False),
        sa.Column("event_seq", sa.Integer(), nullable=False),
        sa.Column("simulator_seq", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("queued_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("config", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(
        "ix_runs_claimable", "runs", ["priority", "queued_at"], sqlite_where=WAITING, postgresql_where=WAITING
    )
    op.create_index(op.f("ix_runs_created_at_id"), "runs", ["created_at", "id"])
    op.create_index(op.f("ix_runs_finished_at_id"), "runs", ["finished_at", "id"])
    op.create_index(op.f("ix_runs_kind_id"), "runs", ["kind", "id"])
    op.create_index(op.f("ix_runs_name_created_at_id"), "runs", ["name", "created_at", "id"])
    op.create_index(op.f("ix_runs_name_id"), "runs", ["name", "id"])
    op.create_index(op.f("ix_runs_state_created_at_id"), "runs", ["state", "created_at", "id"])
    op.create_index(op.f("ix_runs_state_id"), "runs", ["state", "id"])
    op.create_index(op.f("ix_runs_state_name_id"), "runs", ["state", "name", "id"])
    op.create_index(op.f("ix_runs_state_step_id"), "runs", ["state", "step", "id"])
    op.create_index(op.f("ix_runs_state_updated_at_id"), "runs", ["state", "updated_at", "id"])
    op.create_index(op.f("ix_runs_step_id"), "runs", ["step", "id"])
    op.create_index(op.f("ix_runs_stop_reason_id"), "runs", ["stop_reason", "id"])
    op.create_index(op.f("ix_runs_updated_at_id"), "runs", ["updated_at", "id"])

    op.create_table(
        "workers",
        sa.Column("id", sa.String(80), nullable=False),
        sa.Column("host", ordered_text(200), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(40), nullable=False),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("resources", JSON, nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("last_claim_at", sa.Double(), nullable=True),
        sa.Column("run_id", sa.String(40), nullable=True),
        sa.Column("stopped_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index(op.f("ix_workers_heartbeat_at"), "workers", ["heartbeat_at"])

    op.create_table(
        "attempts",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("worker_id", sa.String(80), nullable=False),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("heartbeat_at", sa.Double(), nullable=False),
        sa.Column("endpoints", JSON, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("resumed_from", sa.String(40), nullable=True),
        sa.Column("resume_step", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_attempts_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "epoch", name=op.f("pk_attempts")),
    )
    op.create_index(op.f("ix_attempts_lease_expires_at"), "attempts", ["lease_expires_at"])
    op.create_index(op.f("ix_attempts_worker_id"), "attempts", ["worker_id"])

    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("steps", JSON, nullable=False),
        sa.Column("reason", sa.String(16), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("files", JSON, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("metrics", JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("deleted_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_checkpoints_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
    )
    op.create_index(op.f("ix_checkpoints_run_id_created_at"), "checkpoints", ["run_id", "created_at"])

    op.create_table(
        "events",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("level", sa.String(8), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", JSON, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_events_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_events")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "latest_metrics",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("behavior", sa.String(200), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["runs.id"], name=op.f("fk_latest_metrics_run_id_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "behavior", "key", name=op.f("pk_latest_metrics")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "logs",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_logs_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "epoch", "name", name=op.f("pk_logs")),
    )
    op.create_table(
        "metric_chunks",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("behavior", sa.String(200), nullable=False),
        sa.Column("key", sa.String(200), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.LargeBinary(), nullable=False),
        sa.Column("times", sa.LargeBinary(), nullable=False),
        sa.Column("values", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_metric_chunks_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "behavior", "key", "epoch", "number", name=op.f("pk_metric_chunks")),
    )
    op.create_table(
        "run_tags",
        sa.Column("tag", ordered_text(100), nullable=False),
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_run_tags_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("tag", "run_id", name=op.f("pk_run_tags")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_run_tags_run_id"), "run_tags", ["run_id"])

    op.create_table(
        "simulators",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("incarnation", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("label", ordered_text(200), nullable=False),
        sa.Column("client", sa.String(100), nullable=False),
        sa.Column("peer", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("collector", sa.Integer(), nullable=True),
        sa.Column("relayed", sa.Boolean(), nullable=False),
        sa.Column("behaviors", JSON, nullable=False),
        sa.Column("agents", sa.Integer(), nullable=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("joined_at", sa.Double(), nullable=False),
        sa.Column("connected_at", sa.Double(), nullable=True),
        sa.Column("left_at", sa.Double(), nullable=True),
        sa.Column("leave_code", sa.String(64), nullable=True),
        sa.Column("leave_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_simulators_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "incarnation", name=op.f("pk_simulators")),
    )
    op.create_index(op.f("ix_simulators_run_id_number"), "simulators", ["run_id", "number"])
    op.create_index(op.f("ix_simulators_run_id_state"), "simulators", ["run_id", "state"])


def downgrade() -> None:
    for table in (
        "simulators",
        "run_tags",
        "metric_chunks",
        "logs",
        "latest_metrics",
        "events",
        "checkpoints",
        "attempts",
        "workers",
        "runs",
        "idempotency_keys",
        "config_versions",
    ):
        op.drop_table(table)
