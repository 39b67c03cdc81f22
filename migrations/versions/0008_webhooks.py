"""Webhooks: subscriptions to events, the sent messages, and a cursor of the events of each run.

Why: events are the outbox. A cursor per run marks the last event for which deliveries exist. So no other row is
written with an event, and the previous release can ignore these tables.

Revision: 0008, after 0007
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("project", sa.String(64), nullable=False, server_default="default"),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("events", sa.JSON().with_variant(sa.dialects.postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("run_id", sa.String(40), nullable=True),
        sa.Column("tag", sa.String(100), nullable=True),
        sa.Column("secret", sa.String(200), nullable=False),
        sa.Column("former_secret", sa.String(200), nullable=True),
        sa.Column("former_until", sa.Double(), nullable=True),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", sa.String(16), nullable=True),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("failing_since", sa.Double(), nullable=True),
        sa.Column("last_success_at", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index(op.f("ix_webhooks_created_at_id"), "webhooks", ["created_at", "id"])
    op.create_table(
        "webhook_cursors",
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_webhook_cursors")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("webhook_id", sa.String(40), nullable=False),
        sa.Column("run_id", sa.String(40), nullable=True),
        sa.Column("seq", sa.Integer(), nullable=True),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("attempts_before", sa.Integer(), nullable=False),
        sa.Column("next_try_at", sa.Double(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_webhook_deliveries_webhook_id_webhooks"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint("webhook_id", "run_id", "seq", name=op.f("uq_webhook_deliveries_webhook_id_run_id_seq")),
    )
    op.create_index(
        op.f("ix_webhook_deliveries_webhook_id_created_at_id"), "webhook_deliveries", ["webhook_id", "created_at", "id"]
    )
    op.create_index(op.f("ix_webhook_deliveries_created_at"), "webhook_deliveries", ["created_at"])
    pending = sa.text("state = 'pending'")
    op.create_index(
        "ix_webhook_deliveries_due",
        "webhook_deliveries",
        ["webhook_id", "next_try_at"],
        sqlite_where=pending,
        postgresql_where=pending,
    )
    op.create_table(
        "webhook_attempts",
        sa.Column("delivery_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("response", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["delivery_id"],
            ["webhook_deliveries.id"],
            name=op.f("fk_webhook_attempts_delivery_id_webhook_deliveries"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("delivery_id", "number", name=op.f("pk_webhook_attempts")),
    )


def downgrade() -> None:
    for table in ("attempts", "deliveries", "cursors"):
        op.drop_table(f"webhook_{table}")
    op.drop_table("webhooks")
