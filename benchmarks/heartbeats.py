"""Heartbeats: the latency of a supervisor's lease renewal at 100 beats/s, with 1,000 worker rows in the database.

    python -m benchmarks.heartbeats [--url sqlite:////tmp/x.db | postgresql+psycopg://...] [--seconds 20]

Prints the latency of beats as supervisors measure it, and the total time that `AttemptLedger.heartbeat` takes. The bar
is p50 <= 10 ms and p99 <= 50 ms.
"""

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from sqlalchemy import text

from server.config.run import RunConfig
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.lifecycle.attempts.repository import AttemptLedger, RunQueue
from server.lifecycle.service import RunService
from server.runs.repository import NewRun
from server.workers.repository import WorkerInfo, WorkerRegistry
from tests.factories import RecordingWakeUp

CONFIG = {"behaviors": {"CartPole": {"trainer_type": "ppo"}}, "seed": 1}
BEAT_SECONDS = 2.0
WORKERS = 1000
RUNNING = 200
"""200 runs that beat every 2 s are 100 beats/s."""
THREADS = 8


def prepare(database: Database) -> list[AttemptLedger]:
    """Fill an empty database with workers, and have some of them hold a run each."""
    upgrade_database(database)
    registry = WorkerRegistry(database)
    with database.write() as session:
        session.execute(text("DELETE FROM workers"))
    for number in range(WORKERS):
        registry.register(WorkerInfo(f"host-{number}/1/0", f"host-{number}", 1, "0"))
    queue = RunQueue(database)
    ledgers = []
    for number in range(RUNNING):
        with database.write() as session:
            RunService(session, RecordingWakeUp()).create(NewRun(RunConfig.model_validate(CONFIG)))
        claim = queue.claim(f"host-{number}/1/0", 3600)
        assert claim is not None
        ledgers.append(AttemptLedger(database, claim))
    return ledgers


def beat(ledgers: list[AttemptLedger], seconds: float) -> list[float]:
    """Renew all leases every 2 s, spread evenly; return the seconds of each renewal."""
    taken: list[float] = []
    lock = threading.Lock()
    begin = time.monotonic() + 0.5

    def supervise(thread: int) -> None:
        own = ledgers[thread::THREADS]
        due = [(begin + BEAT_SECONDS * (thread + THREADS * index) / len(ledgers)) for index in range(len(own))]
        beats = 0
        while due[beats % len(own)] < begin + seconds:
            index = beats % len(own)
            time.sleep(max(0.0, due[index] - time.monotonic()))
            started = time.perf_counter()
            own[index].heartbeat(10, beats)
            with lock:
                taken.append(time.perf_counter() - started)
            due[index] += BEAT_SECONDS
            beats += 1

    threads = [threading.Thread(target=supervise, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="An empty database; a file in a temporary folder by default.")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Database(options.url or f"sqlite:///{Path(folder) / 'ludus.db'}")
        try:
            taken = sorted(beat(prepare(database), options.seconds))
        finally:
            database.close()
    p50, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
    print(
        f"{database.url.get_backend_name()}: {len(taken) / options.seconds:.0f} beats/s, p50 {p50 * 1e3:.1f} ms, "
        f"p99 {p99 * 1e3:.1f} ms, longest {taken[-1] * 1e3:.1f} ms, {WORKERS} workers, {RUNNING} runs"
    )


if __name__ == "__main__":
    main()
