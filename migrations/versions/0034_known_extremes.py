"""Highest and lowest values of all metrics are known.

Why: releases before `0026` wrote chunks, and releases before `0013` newest values, without them, so the controller had
to find and read such metrics again. Here it is done once for what is left; nothing is lost if it was done already.

Rolling upgrades: the previous release writes both, and goes on without the index. `extremes_step` stays for it.

Revision: 0034, after 0033
"""

import numpy as np
import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

STALE = sa.text("extremes_step IS NULL OR extremes_step <> step")
CHUNKS = 1000
"""Chunks that are read at once: 4 MB."""

chunks = sa.table(
    "metric_chunks",
    *map(sa.column, ("run_id", "behavior", "key", "attempt", "number", "count", "highest", "lowest")),
    sa.column("values", sa.LargeBinary()),
)
latest = sa.table(
    "latest_metrics", *map(sa.column, ("run_id", "behavior", "key", "step", "highest", "lowest", "extremes_step"))
)
KEY = (chunks.c.run_id, chunks.c.behavior, chunks.c.key, chunks.c.attempt, chunks.c.number)


def upgrade() -> None:
    connection = op.get_bind()
    query = sa.select(*KEY, chunks.c["values"]).where(chunks.c.highest.is_(None)).order_by(*KEY).limit(CHUNKS)
    rows = connection.execute(query).all()
    while rows:
        for row in rows:
            values = np.frombuffer(row.values, "<f8")
            finite = values[np.isfinite(values)]
            if len(finite):
                extremes = {"highest": float(finite.max()), "lowest": float(finite.min())}
                same = (column == part for column, part in zip(KEY, row[:5], strict=True))
                connection.execute(sa.update(chunks).where(*same).values(**extremes))
        rows = connection.execute(query.where(sa.tuple_(*KEY) > sa.tuple_(*rows[-1][:5]))).all()
    of_metric = [chunks.c[name] == latest.c[name] for name in ("run_id", "behavior", "key")]
    extremes = {
        "highest": sa.select(sa.func.max(chunks.c.highest)).where(*of_metric).scalar_subquery(),
        "lowest": sa.select(sa.func.min(chunks.c.lowest)).where(*of_metric).scalar_subquery(),
    }
    connection.execute(sa.update(latest).where(STALE).values(**extremes, extremes_step=latest.c.step))
    op.drop_index("ix_latest_metrics_stale", "latest_metrics")


def downgrade() -> None:
    op.create_index("ix_latest_metrics_stale", "latest_metrics", ["run_id"], sqlite_where=STALE, postgresql_where=STALE)
