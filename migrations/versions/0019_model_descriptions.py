"""Descriptions of the ONNX models of a checkpoint: inputs, outputs, opset, memory.

Why: a game developer must know them to load a model, and neither the API nor the pages may read an ONNX file. The
previous release leaves the column empty and never reads it; it would refuse another key in `files`.

Revision: 0019, after 0018
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("models", JSON, nullable=True))


def downgrade() -> None:
    op.drop_column("checkpoints", "models")
