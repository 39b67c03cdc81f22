"""Experiments, their trials, and the runs of these.

Why: settings are tried and compared as one resource, which the controller goes on with.

Rolling upgrades: a controller of the previous release starts no trials; those that run are ordinary runs.

Revision: 0036, after 0035
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
ACTIVE = sa.text("state = 'RUNNING'")


def ordered_text(length: int) -> sa.String:
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", ordered_text(100), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("token_id", sa.String(40), nullable=False),
        sa.Column("active_seconds", sa.Double(), nullable=False),
        sa.Column("active_since", sa.Double()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
        sa.Column("project", sa.String(64), server_default="default", nullable=False),
    )
    op.create_index("ix_experiments_created_at_id", "experiments", ["created_at", "id"])
    op.create_index("ix_experiments_project_name", "experiments", ["project", "name"], unique=True)
    op.create_index("ix_experiments_active", "experiments", ["id"], sqlite_where=ACTIVE, postgresql_where=ACTIVE)
    op.create_table(
        "trials",
        sa.Column(
            "experiment_id", sa.String(40), sa.ForeignKey("experiments.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("parameters", JSON, nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("reports", JSON, nullable=False),
        sa.Column("attributes", JSON, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double()),
    )
    op.create_table(
        "trial_runs",
        sa.Column("experiment_id", sa.String(40), primary_key=True),
        sa.Column("trial", sa.Integer(), primary_key=True),
        sa.Column("seed", sa.Integer(), primary_key=True),
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("assessment_id", sa.String(40)),
        sa.Column("value", sa.Double()),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id", "trial"],
            ["trials.experiment_id", "trials.number"],
            name="fk_trial_runs_experiment_id_trial_trials",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_trial_runs_run_id", "trial_runs", ["run_id"])


def downgrade() -> None:
    op.drop_table("trial_runs")
    op.drop_table("trials")
    op.drop_table("experiments")
