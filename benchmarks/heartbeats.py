"""Heartbeats: what a busy slot costs the database each 2 s, and how long the renewal of its lease takes.

    python -m benchmarks.heartbeats [--url postgresql+psycopg://... | sqlite:////tmp/x.db] [--slots 200] [--processes 8]

Starts processes with real supervisors, one per slot, each with a trainer that reports step and time spent each second,
and with the slot's own sign of life. Nothing else happens: the figures are those of a beat. The database has 1,000 rows
of workers. Prints per beat: transactions and statements, as the processes send them; on PostgreSQL also the bytes of
the write-ahead log, measured after a checkpoint and the first change of each page, and the share of updates in place
(HOT), as the server counts them: leave the server to the benchmark. The bars are 1 transaction and 300 bytes, 95 % in
place, p50 <= 10 ms and p99 <= 50 ms.
"""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from sqlalchemy import event, text

from ludus.config.run import RunConfig
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.listening import GatewaySettings
from server.kit.settings import WorkerSettings
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.lifecycle.leases.repository import Renewal
from server.lifecycle.service import RunService
from server.runs.diagnosis import TimeSpent
from server.runs.repository import NewRun
from server.workers.repository import WorkerInfo, WorkerRegistry
from tests.factories import RecordingWakeUp
from tests.server.runs.test_diagnosis import SPENT
from tests.worker.host.supervisor.supervising import Threaded
from worker.host.supervisor.loop import Supervisor
from worker.trainer.connection import TrainerConnection
from worker.trainer.messages import Finished, Job, Listening, Progress

CONFIG = {"behaviors": {"CartPole": {"trainer_type": "ppo"}}, "seed": 1}
BEAT_SECONDS = 2.0
WORKERS = 1000
WARM_UP_SECONDS = 6.0
"""Attempts begin, with their events, and read the requests that there are."""


class Timed(AttemptLedger):
    """A ledger that keeps the seconds of each renewal."""

    taken: list[float]

    def heartbeat(self, lease_seconds: float, step: int, time_spent: TimeSpent | None = None) -> Renewal:
        """Renew, and note how long that takes."""
        began = time.perf_counter()
        renewal = super().heartbeat(lease_seconds, step, time_spent)
        self.taken.append(time.perf_counter() - began)
        return renewal


def reports(connection: TrainerConnection, _job: Job) -> None:
    """Report progress every second, until a command comes."""
    connection.post(Listening(endpoints=[]))
    step = 0
    while not connection.commands():
        time.sleep(1.0)
        step += 1000
        connection.post(Progress(step=step, simulators=4, time_spent=SPENT))
    connection.post(Finished(outcome="released", detail="the benchmark is over"))


def occupy(url: str, first: int, slots: int, seconds: float) -> None:
    """Execute a run in each of some slots, and print the counts of this process between warm-up and end."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))  # stdout has the counts
    database = Database(url)
    queue, registry = RunQueue(database), WorkerRegistry(database)
    counts = {"transactions": 0, "statements": 0}
    over, measuring = threading.Event(), threading.Event()
    ledgers: list[Timed] = []

    def count(name: str) -> Any:
        def counted(*arguments: Any) -> None:
            begins = len(arguments) > 2 and arguments[2].startswith("BEGIN")  # of statements, the text is the third
            counts[name] += measuring.is_set() and not begins

        return counted

    engines = {database.engine, database._reader}  # noqa: SLF001  # all connections of the process count
    for engine in engines:
        event.listen(engine, "begin", count("transactions"))
        event.listen(engine, "before_cursor_execute", count("statements"))

    def occupied(number: int, folder: str) -> None:
        worker_id = f"host-{number}/1/0"
        claim = queue.claim(worker_id, 600)
        assert claim is not None
        ledger = Timed(database, claim)
        ledger.taken = []
        ledgers.append(ledger)
        store, scratch = FolderStore(Path(folder) / "artifacts"), Path(folder) / f"scratch-{number}"
        settings = WorkerSettings(lease_seconds=60, heartbeat_seconds=BEAT_SECONDS)
        supervisor = Supervisor(claim, ledger, store, settings, scratch, GatewaySettings(), over.is_set)

        def beat() -> None:  # as `worker.host.tasks.Slot` does
            while not over.wait(BEAT_SECONDS):
                if not supervisor.lease.fresh:
                    registry.beat(worker_id)

        threading.Thread(target=beat, daemon=True).start()
        supervisor.run(Threaded(reports))

    with tempfile.TemporaryDirectory() as folder:
        threads = [threading.Thread(target=occupied, args=(first + index, folder)) for index in range(slots)]
        for thread in threads:
            thread.start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        for ledger in ledgers:
            ledger.taken.clear()
        measuring.set()
        time.sleep(seconds)
        measuring.clear()
        taken = [each for ledger in ledgers for each in ledger.taken]
        sys.stdout.write(json.dumps({**counts, "taken": taken}) + "\n")
        sys.stdout.flush()
        sys.stdin.readline()
        over.set()
        for thread in threads:
            thread.join()


def prepare(database: Database, slots: int) -> None:
    """Fill an empty database with workers and runs."""
    upgrade_database(database)
    registry = WorkerRegistry(database)
    for number in range(WORKERS):
        registry.register(WorkerInfo(f"host-{number}/1/0", f"host-{number}", 1, "0"))
    for _ in range(slots):
        with database.write() as session:
            RunService(session, RecordingWakeUp()).create(NewRun(RunConfig.model_validate(CONFIG)))


def server_counts(database: Database) -> Mapping[str, float]:
    """Return the counters of PostgreSQL since its start; nothing on SQLite."""
    if database.url.get_backend_name() == "sqlite":
        return {}
    with database.read() as session:
        log = session.execute(text("SELECT wal_bytes, wal_fpi FROM pg_stat_wal")).one()
        updates = "SELECT sum(n_tup_upd), sum(n_tup_hot_upd) FROM pg_stat_user_tables"
        updated = session.execute(text(updates)).one()
    return dict(zip(("bytes", "images", "updates", "in_place"), map(float, (*log, *updated)), strict=True))


def tell(processes: "list[subprocess.Popen[str]]") -> None:
    """Let all processes go on."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def lines(processes: "list[subprocess.Popen[str]]") -> list[str]:
    """Return the next line of each process."""
    return [process.stdout.readline() for process in processes if process.stdout is not None]


def measure(url: str, slots: int, processes: int, seconds: float) -> str:
    """Return the figures as a sentence."""
    database = Database(url)
    prepare(database, slots)
    each = slots // processes
    own = [sys.executable, "-m", "benchmarks.heartbeats", "--url", url, "--seconds", str(seconds)]
    running = [
        subprocess.Popen(
            [*own, "--occupy", str(number * each), "--slots", str(each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    lines(running)
    time.sleep(WARM_UP_SECONDS)
    if database.url.get_backend_name() != "sqlite":
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("CHECKPOINT"))  # the next changes log whole pages; afterwards, none does for long
        time.sleep(2 * BEAT_SECONDS)
    before = server_counts(database)
    tell(running)
    found = [json.loads(line) for line in lines(running)]
    after = server_counts(database)
    tell(running)
    for process in running:
        process.wait()
    database.close()
    taken = np.array([one for counts in found for one in counts["taken"]])
    per_beat = {name: sum(counts[name] for counts in found) / len(taken) for name in ("transactions", "statements")}
    words = [f"{database.url.get_backend_name()}: {len(taken) / seconds:.0f} beats/s of {slots} busy slots"]
    words += [f"{per_beat['transactions']:.2f} transactions and {per_beat['statements']:.2f} statements per beat"]
    if after:
        grown = {name: after[name] - before[name] for name in after}
        words += [f"{grown['bytes'] / len(taken):.0f} bytes of log ({grown['images']:.0f} full-page images in all)"]
        words += [f"{100 * grown['in_place'] / grown['updates']:.1f} % of updates in place"]
    p50, p99 = 1e3 * np.percentile(taken, [50, 99])
    return ", ".join([*words, f"renewal p50 {p50:.1f} ms, p99 {p99:.1f} ms"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="An empty database; a file in a temporary folder by default.")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--slots", type=int, default=200)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--occupy", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.occupy is not None:
        occupy(options.url, options.occupy, options.slots, options.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{Path(folder) / 'ludus.db'}"
        print(measure(url, options.slots, options.processes, options.seconds))


if __name__ == "__main__":
    main()
