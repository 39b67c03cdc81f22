"""The token by which quotas count a run, and names of ladders that are each project's own.

Why: quotas counted by `owner`, which users choose freely; they count by project and token now. Names of ladders were
unique in the server, so a project could discover another one's ladder, and could not use its name.
Runs from before have no token. The previous release leaves `token_id` at its default and claims as before, by indexes
that no longer exist. It demands that `ladders.name` is unique in the server, so the column stays, and the name
in use is `local_name`, which a trigger fills in for ladders that the previous release makes. Ladders of this
release are called like their id there.

Revision: 0012, after 0011
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

WAITING = sa.text("state || '' IN ('QUEUED', 'RECOVERING')")
LEASED = sa.text("state || '' IN ('STARTING', 'RUNNING', 'PAUSING', 'STOPPING')")
SHARE = ["project", "token_id", "owner"]

SQLITE_TRIGGER = """
CREATE TRIGGER ladders_local_name AFTER INSERT ON ladders WHEN NEW.local_name = ''
BEGIN
    UPDATE ladders SET local_name = NEW.name WHERE id = NEW.id;
END
"""
POSTGRESQL_TRIGGER = """
CREATE FUNCTION ladders_local_name() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.local_name = '' THEN NEW.local_name := NEW.name; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER ladders_local_name BEFORE INSERT ON ladders FOR EACH ROW EXECUTE FUNCTION ladders_local_name();
"""


def ordered_text(length: int) -> sa.String:
    """Compare by code points in both databases."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def create_index(name: str, columns: list[str], where: sa.TextClause) -> None:
    """Index those runs alone that are in certain states."""
    op.create_index(name, "runs", columns, sqlite_where=where, postgresql_where=where)


def upgrade() -> None:
    op.add_column("runs", sa.Column("token_id", sa.String(40), nullable=False, server_default=""))
    op.drop_index("ix_runs_turn", "runs")
    op.drop_index("ix_runs_leased", "runs")
    create_index("ix_runs_share", [*SHARE, "demand", "priority", "queued_at", "id"], WAITING)
    create_index("ix_runs_training", SHARE, LEASED)

    op.add_column("ladders", sa.Column("local_name", ordered_text(200), nullable=False, server_default=""))
    op.execute(sa.text("UPDATE ladders SET local_name = name"))
    op.create_index(op.f("ix_ladders_project_local_name"), "ladders", ["project", "local_name"], unique=True)
    op.execute(sa.text(SQLITE_TRIGGER if op.get_bind().dialect.name == "sqlite" else POSTGRESQL_TRIGGER))


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute(sa.text("DROP TRIGGER ladders_local_name"))
    else:
        op.execute(sa.text("DROP TRIGGER ladders_local_name ON ladders"))
        op.execute(sa.text("DROP FUNCTION ladders_local_name"))
    # Of ladders of one name in several projects one keeps it; the others stay called like their id.
    ladders = sa.table("ladders", sa.column("id"), sa.column("name"), sa.column("local_name"))
    other = ladders.alias("other")
    has_it = sa.exists().where(other.c.id != ladders.c.id, other.c.name == ladders.c.local_name)
    goes_first = sa.exists().where(other.c.id < ladders.c.id, other.c.local_name == ladders.c.local_name)
    op.execute(sa.update(ladders).where(~has_it, ~goes_first).values(name=ladders.c.local_name))
    op.drop_index(op.f("ix_ladders_project_local_name"), "ladders")
    op.drop_column("ladders", "local_name")

    op.drop_index("ix_runs_training", "runs")
    op.drop_index("ix_runs_share", "runs")
    op.drop_column("runs", "token_id")
    create_index("ix_runs_turn", ["owner", "demand", "priority", "queued_at", "id"], WAITING)
    create_index("ix_runs_leased", ["owner"], LEASED)
