"""Totals of the attempts that were deleted with their runs.

Why: `ludus_attempts_ended_total` and `ludus_agent_steps_total` are counted from the rows of attempts, and fell when
retention, or a user, deleted a run: Prometheus takes that for a restart, and counts all attempts once more. The rows of
`deleted_attempts` stay, and are added.

Triggers fill them: attempts go with their run in a cascade, and a controller of the previous release deletes runs, too.
On PostgreSQL the trigger is one statement for each deleted run, which locks the totals in their order: two deletions
at once wait for each other, and never in a circle.

Revision: 0029, after 0028
"""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

SQLITE_TRIGGER = """
CREATE TRIGGER attempts_deleted AFTER DELETE ON attempts
BEGIN
    INSERT INTO deleted_attempts (outcome, attempts, agent_steps)
    VALUES (coalesce(OLD.outcome, ''), 1, max(0, OLD.step - OLD.resume_step))
    ON CONFLICT (outcome) DO UPDATE
    SET attempts = attempts + excluded.attempts, agent_steps = agent_steps + excluded.agent_steps;
END
"""
POSTGRESQL_TRIGGER = """
CREATE FUNCTION count_deleted_attempts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deleted_attempts AS total (outcome, attempts, agent_steps)
    SELECT coalesce(outcome, ''), count(*), sum(greatest(0, step - resume_step)) FROM gone GROUP BY 1 ORDER BY 1
    ON CONFLICT (outcome) DO UPDATE
    SET attempts = total.attempts + excluded.attempts, agent_steps = total.agent_steps + excluded.agent_steps;
    RETURN NULL;
END $$;
CREATE TRIGGER attempts_deleted AFTER DELETE ON attempts REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION count_deleted_attempts();
"""


def upgrade() -> None:
    op.create_table(
        "deleted_attempts",
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("agent_steps", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("outcome", name="pk_deleted_attempts"),
    )
    op.execute(sa.text(SQLITE_TRIGGER if op.get_bind().dialect.name == "sqlite" else POSTGRESQL_TRIGGER))


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute(sa.text("DROP TRIGGER attempts_deleted"))
    else:
        op.execute(sa.text("DROP TRIGGER attempts_deleted ON attempts"))
        op.execute(sa.text("DROP FUNCTION count_deleted_attempts"))
    op.drop_table("deleted_attempts")
