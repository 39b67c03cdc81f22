"""Sessions of browsers, and tokens that are bound to a ladder.

Why: pages sign in with a token and keep a cookie instead of it; a token may be for reading one ladder alone. The
previous release reads neither. It does not know that a token with the scope `read` can be bound, and lets such a token
read the whole project: make none before all processes run this release.

Revision: 0020, after 0019
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tokens") as table:
        table.add_column(sa.Column("ladder_id", sa.String(40), nullable=True))
        table.create_foreign_key(
            op.f("fk_tokens_ladder_id_ladders"), "ladders", ["ladder_id"], ["id"], ondelete="CASCADE"
        )
    op.create_index(op.f("ix_tokens_ladder_id"), "tokens", ["ladder_id"])
    op.create_table(
        "browser_sessions",
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("token_id", sa.String(40), nullable=True),
        sa.Column("configured_digest", sa.String(64), nullable=True),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_browser_sessions_token_id_tokens"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_browser_sessions")),
    )
    op.create_index(op.f("ix_browser_sessions_token_id"), "browser_sessions", ["token_id"])


def downgrade() -> None:
    op.drop_table("browser_sessions")
    # Without the column they would be tokens for the whole project.
    op.execute(sa.text("DELETE FROM tokens WHERE ladder_id IS NOT NULL"))
    op.drop_index(op.f("ix_tokens_ladder_id"), "tokens")
    with op.batch_alter_table("tokens") as table:
        table.drop_constraint(op.f("fk_tokens_ladder_id_ladders"), type_="foreignkey")
        table.drop_column("ladder_id")
