"""The agent steps at which a run is complete, beside its configuration.

Why: a list of runs shows how much of each is done, and when it will be complete, without reading configurations. The
previous release leaves the column empty in the runs that it creates, and does not change it when a user changes
`max_steps`: those runs are listed without an estimate, or with that of before.

Revision: 0021, after 0020
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

OF_SQLITE = """
UPDATE runs SET max_steps = (
    SELECT SUM(json_extract(value, '$.max_steps')) FROM json_each(runs.config, '$.behaviors')
) WHERE kind IN ('train', 'clone') AND json_valid(config)
"""
OF_POSTGRESQL = """
UPDATE runs SET max_steps = (
    SELECT SUM(CAST(value ->> 'max_steps' AS NUMERIC)) FROM jsonb_each(config -> 'behaviors')
) WHERE kind IN ('train', 'clone') AND jsonb_typeof(config -> 'behaviors') = 'object'
"""


def upgrade() -> None:
    op.add_column("runs", sa.Column("max_steps", sa.BigInteger(), nullable=True))
    op.execute(sa.text(OF_SQLITE if op.get_bind().dialect.name == "sqlite" else OF_POSTGRESQL))


def downgrade() -> None:
    op.drop_column("runs", "max_steps")
