"""Lists 100,000 runs with every filter and order: the time of a page of 100 with the progress of its runs.

    python benchmarks/run_list.py [sqlite:////tmp/runs.db | postgresql+psycopg://...]

Fills an empty or new database once, then reads first and second pages. The bar: the
99th percentile is at most 100 ms. Over HTTP the encoding of the answer comes on top.
"""

import gc
import itertools
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import insert, text

from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.listing import Condition, ListQuery, Operator, Order
from server.lifecycle.progress import ProgressRepository
from server.runs.models import Run, RunTag
from server.runs.repository import RunRepository

RUNS = 100_000
CONFIG = {"behaviors": {"CartPole": {f"key_{number}": number * 1.5 for number in range(90)}}}
STATES = ["SUCCEEDED"] * 85 + ["FAILED"] * 8 + ["CANCELLED"] * 6 + ["QUEUED"]
REASONS = {"SUCCEEDED": ["completed", "user"], "FAILED": ["diverged", "worker_lost", "trainer_error"]}
BEGIN = 1.7e9
EQ, NE, LT, GT = Operator.EQ, Operator.NE, Operator.LT, Operator.GT
FILTERS: list[list[tuple[str, Operator, Any]]] = [
    [],
    [("state", EQ, "SUCCEEDED")],
    [("state", EQ, "QUEUED")],
    [("state", NE, "SUCCEEDED")],
    [("name", EQ, "nightly-500")],
    [("name", EQ, "nightly*")],
    [("name", EQ, "absent*")],
    [("tags", EQ, "nightly")],
    [("tags", EQ, "rare")],
    [("tags", NE, "nightly")],
    [("stop_reason", EQ, "diverged")],
    [("kind", EQ, "train")],
    [("kind", EQ, "match")],
    [("created_at", GT, BEGIN + 60 * (RUNS - 100))],
    [("created_at", LT, BEGIN + 60 * 100)],
    [("finished_at", GT, BEGIN + 60 * (RUNS - 100))],
    [("step", GT, 4_995_000)],
    [("state", EQ, "FAILED"), ("tags", EQ, "t3")],
    [("state", EQ, "SUCCEEDED"), ("stop_reason", EQ, "user"), ("name", EQ, "exp1*")],
]
ORDERS = [Order(field, d) for field in ("created_at", "updated_at", "name", "step", "state") for d in (True, False)]


def fill(database: Database) -> None:
    """Insert runs as a year of use might leave them."""
    draw = random.Random(0)
    for start in range(0, RUNS, 5000):
        rows = [make_row(number, draw) for number in range(start, start + 5000)]
        with database.write() as session:
            session.execute(insert(Run), rows)
            session.execute(insert(RunTag), [{"tag": tag, "run_id": row["id"]} for row in rows for tag in row["tags"]])
    if database.engine.dialect.name == "postgresql":
        with database.write() as session:
            session.execute(text("ANALYZE"))


def make_row(number: int, draw: random.Random) -> dict[str, Any]:
    """Describe one run."""
    state = draw.choice(STATES)
    at = BEGIN + 60.0 * number
    tags = {f"t{draw.randrange(20)}", "nightly" if draw.random() < 0.3 else "adhoc"}
    return {
        "id": f"run_{number:026d}",
        "kind": "train",
        "name": f"exp{draw.randrange(500)}-{number}" if number % 3 else f"nightly-{number % 1000}",
        "tags": sorted(tags | {"rare"} if number % 10_000 == 5 else tags),
        "state": state,
        "stop_reason": draw.choice(REASONS[state]) if state in REASONS else None,
        "config": CONFIG,
        "seed": number,
        "stored_step": draw.randrange(5_000_000),
        "created_at": at,
        "queued_at": at,
        "finished_at": None if state == "QUEUED" else at + draw.random() * 50_000,
        "stored_updated_at": at + draw.random() * 50_000,
    }


def measure(database: Database) -> list[tuple[float, str]]:
    """Return the milliseconds of every query, slowest first, with its parameters."""
    found = []
    for parts, order in itertools.product(FILTERS, ORDERS):
        query = ListQuery(order, tuple(Condition(*part) for part in parts))
        asked = " AND ".join(f"{field} {operator} {value}" for field, operator, value in parts) or "everything"
        name = f"{asked}, by {order.field}{' desc' if order.descending else ''}"
        for attempt in range(3):
            begun = time.perf_counter()
            with database.read() as session:
                page = RunRepository(session).list(query)
                ProgressRepository(session).of(page.items)
            if attempt:
                found.append((1000 * (time.perf_counter() - begun), name))
        if page.next is not None:
            begun = time.perf_counter()
            with database.read() as session:
                second = RunRepository(session).list(ListQuery(order, query.conditions, after=page.next))
                ProgressRepository(session).of(second.items)
            found.append((1000 * (time.perf_counter() - begun), name + " (second page)"))
    return sorted(found, reverse=True)


def main() -> None:
    """Fill, measure, print."""
    folder = tempfile.TemporaryDirectory() if len(sys.argv) < 2 else None
    database = Database(sys.argv[1] if folder is None else f"sqlite:///{Path(folder.name) / 'runs.db'}")
    upgrade_database(database)
    with database.read() as session:
        empty = RunRepository(session).count() == 0
    if empty:
        fill(database)
    gc.collect()
    gc.freeze()  # as a long-lived server does: exclude the objects from the start from garbage collection
    found = measure(database)
    times = np.array([milliseconds for milliseconds, _ in found])
    print(f"{len(times)} queries on {RUNS} runs, {database.engine.dialect.name}")
    print("median {:.1f} ms, p99 {:.1f} ms, worst {:.1f} ms".format(*np.percentile(times, [50, 99, 100])))
    for milliseconds, name in found[:5]:
        print(f"{milliseconds:8.1f} ms  {name}")
    database.close()
    if folder is not None:
        folder.cleanup()


if __name__ == "__main__":
    main()
