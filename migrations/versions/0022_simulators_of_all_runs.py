"""Indexes for the list of the simulators of all runs.

Why: who is connected anywhere, and who left in the last minutes, is read in the order of the list, however many
simulators have ever joined. The previous release does not use them.

Revision: 0022, after 0021
"""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

INDEXES = (["joined_at"], ["left_at"], ["state", "joined_at"], ["leave_code", "left_at"])


def upgrade() -> None:
    for columns in INDEXES:
        op.create_index(f"ix_simulators_{'_'.join(columns)}", "simulators", columns)


def downgrade() -> None:
    for columns in INDEXES:
        op.drop_index(f"ix_simulators_{'_'.join(columns)}", "simulators")
