"""Tokens, projects and the audit log.

Why: the database keeps the rights of tokens, each row belongs to a project, and every change leaves an entry. The
previous release ignores all of it and works in the project `default`, which is the default of the new columns.

Revision: 0007, after 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

OWNED = ("runs", "demonstrations", "uploaded_checkpoints", "ladders")
"""Tables whose rows belong to a project; those of stored configurations do so by their key."""
VERSIONS = "config_versions"


def ordered_text(length: int) -> sa.String:
    """Compare by code points in both databases."""
    return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")


def project() -> sa.Column[str]:
    """The project of a row."""
    return sa.Column("project", sa.String(64), nullable=False, server_default="default")


def upgrade() -> None:
    for table in OWNED:
        op.add_column(table, project())
    op.create_index(op.f("ix_runs_project_id"), "runs", ["project", "id"])
    with op.batch_alter_table(VERSIONS, recreate="auto") as table:
        table.add_column(project())
        table.drop_constraint(op.f("pk_config_versions"), type_="primary")
        table.create_primary_key(op.f("pk_config_versions"), ["name", "version", "project"])
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("name", ordered_text(200), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("scopes", sa.JSON().with_variant(sa.dialects.postgresql.JSONB(), "postgresql"), nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("run_id", sa.String(40), nullable=True),
        sa.Column("created_by", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_tokens_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_index(op.f("ix_tokens_run_id"), "tokens", ["run_id"])
    op.create_index(op.f("ix_tokens_created_at_id"), "tokens", ["created_at", "id"])
    op.create_table(
        "audit_entries",
        sa.Column("id", sa.String(40), nullable=False),
        project(),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("token_id", sa.String(40), nullable=True),
        sa.Column("method", sa.String(16), nullable=False),
        sa.Column("route", sa.String(200), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("client", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_entries")),
    )
    op.create_index(op.f("ix_audit_entries_at_id"), "audit_entries", ["at", "id"])
    op.create_index(op.f("ix_audit_entries_project_at_id"), "audit_entries", ["project", "at", "id"])


def downgrade() -> None:
    op.drop_table("audit_entries")
    op.drop_table("tokens")
    # Without projects their names would collide: delete the rows of all projects but the first.
    op.execute(sa.text("DELETE FROM config_versions WHERE project <> 'default'"))
    with op.batch_alter_table(VERSIONS, recreate="auto") as table:
        table.drop_constraint(op.f("pk_config_versions"), type_="primary")
        table.create_primary_key(op.f("pk_config_versions"), ["name", "version"])
        table.drop_column("project")
    op.drop_index(op.f("ix_runs_project_id"), "runs")
    for table_name in OWNED:
        op.drop_column(table_name, "project")
