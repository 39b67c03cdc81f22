"""Files that no row names any more, with the time since when.

Why: the former Parquet file of a run whose archive was thinned, and the files of deleted demonstrations and uploaded
checkpoints, were removed at once. A backup that had copied the database before, and copied the files after, had rows
without files. Now they stay for `LUDUS_STORAGE__PURGE_DELAY_SECONDS`, like those of checkpoints that are given up.

Revision: 0030, after 0029
"""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "given_up_files",
        sa.Column("path", sa.String(500), nullable=False),
        sa.Column("given_up_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("path", name=op.f("pk_given_up_files")),
    )
    op.create_index(op.f("ix_given_up_files_given_up_at"), "given_up_files", ["given_up_at"])


def downgrade() -> None:
    op.drop_table("given_up_files")
