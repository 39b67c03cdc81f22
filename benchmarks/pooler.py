"""Slots behind PgBouncer: how many connections PostgreSQL has while many slots beat and claim through a pooler.

    python -m benchmarks.pooler postgresql+psycopg://... [--slots 1000] [--rounds 5] [--connections 60]

The database must be empty. Each slot is a thread with a pool of its own, as each slot of a worker has one, in four
processes: it registers, every second one claims a run, and then they beat every 2 s, the busy ones with a renewal
of their lease. Prints the most server connections that PgBouncer and PostgreSQL reported, and the time that a
beat takes.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.errors import DatabaseUnavailable
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.workers.repository import WorkerInfo, WorkerRegistry
from tests.chaos.servers import PgBouncer
from tests.factories import make_run

PROCESSES = 4
BEAT_SECONDS = 2.0
START_SECONDS = 0.06
"""Between the starts of two slots: a fleet that starts at once would wait for the one lock of claims."""


def work(url: str, numbers: range, rounds: int) -> None:
    """Be so many slots; print the seconds of each beat when all of them have stopped."""
    taken: list[float] = []
    failed: list[BaseException] = []

    def slot(number: int) -> None:
        database = Database(url, pool_size=2)
        registry, queue = WorkerRegistry(database), RunQueue(database)
        worker = f"host-{number}/1/0"
        time.sleep(number * START_SECONDS)
        registry.register(WorkerInfo(worker, f"host-{number}", 1, "0"))
        claim = None
        while number % 2:  # nothing wakes the others: there is no run for them
            try:
                claim = queue.claim(worker, 600)
                break
            except DatabaseUnavailable as error:  # the lock of all claims was held for too long: as a worker, once more
                print(f"slot {number} claims again: {error}", file=sys.stderr)
        began = time.monotonic()
        ledger = None if claim is None else AttemptLedger(database, claim)
        for beat in range(rounds):
            time.sleep(BEAT_SECONDS - (time.monotonic() - began) % BEAT_SECONDS)
            started = time.perf_counter()
            registry.beat(worker)
            if ledger is not None:
                ledger.heartbeat(600, beat)
            taken.append(time.perf_counter() - started)
        database.close()

    def watched(number: int) -> None:
        try:
            slot(number)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=watched, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(*taken)
    sys.exit(bool(failed))


def measure(url: str, slots: int, rounds: int, connections: int) -> tuple[int, int, list[float]]:
    """Return the most server connections by PgBouncer's and by PostgreSQL's count, and the seconds of all beats.

    The database must be migrated. Raises CalledProcessError if a slot failed.
    """
    with tempfile.TemporaryDirectory(prefix="ludus-pooler-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)  # PgBouncer's own user has to come in
        pooler = PgBouncer(folder, url, connections=connections)
        pooler.start()
        cuts = [slots * part // PROCESSES for part in range(PROCESSES + 1)]
        command = [sys.executable, "-m", "benchmarks.pooler", pooler.url, "--rounds", str(rounds)]
        processes = [
            subprocess.Popen([*command, "--part", f"{first}:{last}"], stdout=subprocess.PIPE, text=True)
            for first, last in pairwise(cuts)
        ]
        outputs: list[str] = []
        readers = [
            threading.Thread(target=lambda process=process: outputs.append(process.communicate()[0]))
            for process in processes
        ]
        for reader in readers:
            reader.start()
        by_pooler = by_server = 0
        name = make_url(url).database or ""
        try:
            with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as watcher:
                while any(process.poll() is None for process in processes):
                    pools = [pool for pool in pooler.console("SHOW POOLS") if pool["database"] == name]
                    counts = [sum(int(pool[key]) for key in pool if key.startswith("sv_")) for pool in pools]
                    by_pooler = max([by_pooler, *counts])
                    row = watcher.execute(
                        "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = %s", (name,)
                    ).fetchone()
                    assert row is not None
                    by_server = max(by_server, int(row[0]))
                    time.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for reader in readers:
                reader.join()
            pooler.crash()
        for process in processes:
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, process.args)
        return by_pooler, by_server, [float(word) for output in outputs for word in output.split()]


def main() -> None:
    """Measure and print; with --part be a process of slots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--slots", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=60, help="PgBouncer's default_pool_size.")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        first, last = map(int, options.part.split(":"))
        work(options.url, range(first, last), options.rounds)
        return
    database = Database(options.url)
    upgrade_database(database)
    for number in range(options.slots // 2):
        make_run(database, name=f"run-{number}")
    database.close()
    by_pooler, by_server, taken = measure(options.url, options.slots, options.rounds, options.connections)
    taken.sort()
    print(
        f"{options.slots} slots: at most {by_pooler} server connections (PgBouncer), {by_server} (PostgreSQL); "
        f"a beat takes {statistics.median(taken) * 1e3:.0f} ms (median), "
        f"{taken[int(len(taken) * 0.99)] * 1e3:.0f} ms (p99)"
    )


if __name__ == "__main__":
    main()
