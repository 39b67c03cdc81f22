"""The history of aliases: one row for each move, and for each deletion.

Why: people ask since when an alias stands for a checkpoint, who moved it there, and for what it stood before. Of an
existing alias only its newest move is known, without its author. The previous release moves aliases without a row: such
a move is missing in the history, and the alias then has no author.

Revision: 0018, after 0015
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alias_moves",
        sa.Column("alias", sa.String(200).with_variant(sa.String(200, collation="C"), "postgresql"), nullable=False),
        sa.Column("project", sa.String(64), nullable=False, server_default="default"),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("checkpoint_id", sa.String(40), nullable=True),
        sa.Column("moved_at", sa.Double(), nullable=False),
        sa.Column("moved_by", sa.String(200), nullable=True),
        sa.PrimaryKeyConstraint("alias", "project", "version", name=op.f("pk_alias_moves")),
    )
    op.execute(
        "INSERT INTO alias_moves (alias, project, version, checkpoint_id, moved_at) "
        "SELECT name, project, version, checkpoint_id, moved_at FROM checkpoint_aliases"
    )


def downgrade() -> None:
    op.drop_table("alias_moves")
