"""What reads cost that look at the slots of a fleet, with 300, 1,000 and 3,000 slots, and 100 and 1,000 waiting runs.

    python -m benchmarks.slots postgresql+psycopg://... [--slots 300 1000 3000] [--runs 100 1000] [--rounds 30]

The database must be empty. Half of the slots train a run. A slot in a hundred has a label; the runs demand it, or one
that no slot has. So a slot without labels that claims finds nothing, and looks for an idle slot that serves the runs.
Prints the processor time of one call, of PostgreSQL (on this machine) and of the caller, in milliseconds.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from sqlalchemy import text

from server.controller.notifier import WakeUpNotifier
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.scheduling import SchedulingSettings
from server.kit.settings import Settings
from server.lifecycle.claims.repository import RunQueue
from server.runs.models import Attempt, Lease, Run
from server.runs.scheduling.demand import Offer
from server.workers.models import Worker
from server.workers.repository import QueueRepository, WorkerInfo, WorkerRegistry
from tests.factories import CONFIG, RecordingWakeUp, make_claim, make_run

LEASE_SECONDS = 100_000.0
"""Of all rows: nobody beats."""
LABELLED = 100
"""A slot in so many has the label."""
WARM_UP = 3
"""Calls that do not count."""
NUMBERS = "generate_series(1, :count) AS numbers(i)"


def copy(database: Database, model: type[Run | Attempt | Lease | Worker], row: str, count: int, **varied: str) -> None:
    """Insert copies of a row, whose column `id` or `run_id` is `row`. `varied` are expressions of the number `i`."""
    names = [column.name for column in model.__table__.columns]
    key = "id" if "id" in names else "run_id"
    chosen = ", ".join(varied.get(name, name) for name in names)
    source = f"SELECT {chosen} FROM {model.__tablename__}, {NUMBERS} WHERE {key} = :row"  # noqa: S608  # no input of users
    with database.write() as session:
        session.execute(
            text(f"INSERT INTO {model.__tablename__} ({', '.join(names)}) {source}"), {"row": row, "count": count}
        )


def fill(database: Database, slots: int, runs: int) -> None:
    """Make a fleet of so many slots, and so many runs that wait in vain for a slot that has no label."""
    with database.write() as session:
        session.execute(text("TRUNCATE runs, workers CASCADE"))
    registry = WorkerRegistry(database)
    for name, labels in (("busy", ()), ("plain", ()), ("labelled", ("a100",))):
        registry.register(WorkerInfo(name, "host", 1, "0", labels, {"gpus": []}))
    trained = make_run(database, name="trained").id
    make_claim(database, "busy", LEASE_SECONDS)
    numbered = {"id": "'run_' || i", "run_id": "'run_' || i", "worker_id": "'busy-' || i"}
    for model in (Run, Attempt, Lease):
        copy(database, model, trained, slots // 2, **numbered)
    copy(database, Worker, "busy", slots // 2, id="'busy-' || i", host="'busy-' || i / 8", run_id="'run_' || i")
    labelled = slots // LABELLED
    for name, count in (("labelled", labelled), ("plain", slots - slots // 2 - labelled)):
        copy(database, Worker, name, count, id=f"'{name}-' || i", host=f"'{name}-' || i / 8")
    for number, label in enumerate(("a100", "moon")):
        waiting = make_run(database, config={**CONFIG, "resources": {"labels": [label]}}).id
        copy(database, Run, waiting, runs // 2, id=f"'wait_{number}_' || i", owner="'owner-' || i % 10")


def measure(watcher: psycopg.Connection, call: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the milliseconds of processor time that PostgreSQL and this process take for one call, in the mean."""

    def used() -> tuple[float, float]:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        times = [Path(f"/proc/{pid}/schedstat").read_text().split()[0] for (pid,) in watcher.execute(query)]
        return sum(map(int, times)) / 1e6, 1e3 * time.process_time()

    for _ in range(WARM_UP):
        call()
    before = used()
    for _ in range(rounds):
        call()
    server, client = ((after - earlier) / rounds for after, earlier in zip(used(), before, strict=True))
    return server, client


def main() -> None:
    """Print a row of figures for each size of the fleet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--slots", type=int, nargs="+", default=[300, 1000, 3000])
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    database, policy = Database(options.url), SchedulingSettings()
    upgrade_database(database)
    watcher = psycopg.connect(options.url.replace("+psycopg", ""), autocommit=True)
    plain, graphics = RunQueue(database, policy), RunQueue(database, policy)

    def queue() -> None:
        with database.read() as session:
            QueueRepository(session).read(policy, LEASE_SECONDS)

    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder), worker={"lease_seconds": LEASE_SECONDS})  # type: ignore[arg-type]
        calls: dict[str, Callable[[], object]] = {
            "empty claim": lambda: plain.claim("plain-1", LEASE_SECONDS, offer=Offer()),
            "empty claim, with a GPU": lambda: graphics.claim("plain-2", LEASE_SECONDS, offer=Offer(1)),
            "GET /v1/queue": queue,
            "round of the notifier": WakeUpNotifier(database, RecordingWakeUp(), settings).tick,
        }
        for slots in options.slots:
            for runs in options.runs:
                fill(database, slots, runs)
                watcher.execute("VACUUM ANALYZE")
                for name, call in calls.items():
                    server, client = measure(watcher, call, options.rounds)
                    sys.stdout.write(f"{slots} slots, {runs} runs, {name}: {server:.2f} and {client:.2f} ms\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
