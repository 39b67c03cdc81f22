"""Metrics: points per second that the database takes, and the price of a point in WAL and processor time.

    python -m benchmarks.metrics --url postgresql+psycopg://... [--processes 4] [--summaries 2000] [--rate POINTS]

Several processes append summaries of 25 keys, each for runs of its own, as fast as they can or at a common rate, while
the compaction job of a controller packs them. Prints points per second, statements and bytes of WAL per summary (of
all that the server wrote meanwhile: let nothing else use it), and seconds of processor time per million points of
clients, of their connections in the server, and of compaction. Then the processor time of a claim, and of the rewind
that follows it, with 100,000 points of each key and without history. The bars: 3 statements and 3 kB for each append,
10,000 points/s, and a claim that takes at most twice as long. Needs an empty database on this host.
"""

import argparse
import math
import multiprocessing
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import event, insert, text

from ludus.config.run import RunConfig
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.jobs import JobLoop
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import Claim, RunQueue
from server.lifecycle.service import RunService
from server.metrics.jobs import packing_job
from server.metrics.models import LatestMetric, MetricChunk
from server.metrics.points import CHUNK_POINTS, MetricPoint, Points
from server.metrics.repository import PackingRepository
from server.runs.repository import NewRun
from tests.factories import RecordingWakeUp, make_checkpoint

CONFIG = {"behaviors": {"CartPole": {"trainer_type": "ppo"}}, "seed": 1}
KEYS = [f"Losses/Some Measured Quantity {number}" for number in range(25)]
RUNS = 10
"""Of each process."""
LONG = 196 * CHUNK_POINTS
"""Points of each key in a long history: 100,352."""
CLAIMS = 41


@dataclass
class Sent:
    """The work of one process."""

    summaries: int
    statements: int
    seconds: float
    client: float
    """Seconds of processor time."""
    server: float
    """Those of the connection's process in the server."""


def claimed(database: Database, name: str) -> Claim:
    """Create a run and claim it."""
    with database.write() as session:
        RunService(session, RecordingWakeUp()).create(NewRun(RunConfig.model_validate(CONFIG), name=name))
    claim = RunQueue(database).claim(name, 3600)
    assert claim is not None
    return claim


def processor_time(pid: int) -> float:
    """Return the seconds of processor time that a process of this host has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def send(url: str, claims: list[Claim], summaries: int, per_second: float) -> Sent:
    """Append so many summaries to runs in turn, at most so many per second."""
    database = Database(url, pool_size=1)
    ledgers = [AttemptLedger(database, claim) for claim in claims]
    statements = 0

    def count(*_arguments: object) -> None:
        nonlocal statements
        statements += 1

    event.listen(database.engine, "before_cursor_execute", count)
    ledgers[0].metrics.append([MetricPoint("CartPole", "first", 1, 1.0, 1.0)])  # statements are compiled
    began, cpu, statements = time.perf_counter(), time.process_time(), 0
    with database.read() as session:
        backend = int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())
    before = processor_time(backend)
    for sent in range(summaries):
        time.sleep(max(0.0, sent / per_second - (time.perf_counter() - began)))
        step = 1000 * (1 + sent // len(ledgers))
        summary = [MetricPoint("CartPole", key, step, time.time(), math.sin(step + i)) for i, key in enumerate(KEYS)]
        ledgers[sent % len(ledgers)].metrics.append(summary)
    server = processor_time(backend) - before
    return Sent(summaries, statements, time.perf_counter() - began, time.process_time() - cpu, server)


def appends(url: str, database: Database, processes: int, each: int, rate: float) -> None:
    """Measure appends beside compaction."""
    claims = [[claimed(database, f"run-{process}-{number}") for number in range(RUNS)] for process in range(processes)]
    per_second = rate / len(KEYS) / processes if rate else math.inf
    stop, packing = threading.Event(), JobLoop([packing_job(database)], 2.0)
    cpu, before = time.process_time(), wal(database)
    thread = threading.Thread(target=packing.run, args=(stop,))
    thread.start()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        sent = pool.starmap(send, [(url, theirs, each, per_second) for theirs in claims])
    stop.set()
    thread.join()
    summaries = sum(each.summaries for each in sent)
    points, written = summaries * len(KEYS), wal(database) - before
    print(f"{processes} processes, {len(claims) * RUNS} runs, {len(KEYS)} keys")
    print(f"points/s {points / statistics.fmean(each.seconds for each in sent):,.0f}")
    print(f"statements per summary {sum(each.statements for each in sent) / summaries:.2f}")
    print(f"WAL per summary {written / summaries:,.0f} B, compaction included; per point {written / points:.0f} B")
    for name, used in (
        ("clients", sum(each.client for each in sent)),
        ("their connections in the server", sum(each.server for each in sent)),
        ("compaction, without its connection", time.process_time() - cpu),
    ):
        print(f"processor seconds per million points, {name}: {used / points * 1e6:.1f}")


def wal(database: Database) -> int:
    """Return the position of the server's write-ahead log in bytes."""
    with database.read() as session:
        return int(session.execute(text("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")).scalar_one())


def remember(database: Database, run_id: str) -> None:
    """Give a run's first attempt a long history of each key."""
    steps = Points.of([MetricPoint("", "", step, float(step), math.sin(step)) for step in range(1, LONG + 1)])
    parts = [MetricChunk.columns(steps[start : start + CHUNK_POINTS]) for start in range(0, LONG, CHUNK_POINTS)]
    newest = {"step": LONG, "value": 1.0, "at": 1.0, "highest": 1.0, "lowest": -1.0, "extremes_step": LONG}
    for key in KEYS:
        place = {"run_id": run_id, "behavior": "CartPole", "key": key}
        with database.write() as session:
            rows = [{**place, "attempt": 1, "number": number} | part for number, part in enumerate(parts)]
            session.execute(insert(MetricChunk), rows)
            session.execute(insert(LatestMetric).values(**place, **newest))


def resumed(database: Database, claim: Claim, step: int) -> tuple[Claim, float, float]:
    """Have a run resume at a step; return its claim, and processor times, server included: claim, and its rewind."""
    ledger = AttemptLedger(database, claim)
    path = f"runs/{claim.run_id}/{claim.attempt}/{step}"
    ledger.checkpoints.add(make_checkpoint(step, steps={"CartPole": step}, path=path))
    ledger.release("released", "The worker stops.")
    with database.read() as session:
        backend = int(session.execute(text("SELECT pg_backend_pid()")).scalar_one())
    began = time.process_time() + processor_time(backend)
    again = RunQueue(database).claim("again", 3600, hint=claim.run_id)
    assert again is not None
    taken = time.process_time() + processor_time(backend)
    with database.write() as session:
        PackingRepository(session).rewind(claim.run_id)
    return again, taken - began, time.process_time() + processor_time(backend) - taken


def rewinds(url: str) -> None:
    """Measure claims in turn, of a run with a long history and of one without, each of which loses some points."""
    database = Database(url, pool_size=1)
    claims = {name: claimed(database, name) for name in ("none", "long")}
    remember(database, claims["long"].run_id)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in claims}
    for number in range(CLAIMS):
        for name, times in taken.items():
            claims[name], *seconds = resumed(database, claims[name], LONG - 100 * (number + 1))
            times.append((seconds[0], seconds[1]))
    print(f"processor time without history, and with {LONG:,} points x {len(KEYS)} keys:")
    for part, name in enumerate(("claim", "its rewind")):  # the first one of each run compiles statements
        none, long = (statistics.fmean(each[part] for each in taken[run][1:]) for run in claims)
        print(f"{name}: {1000 * none:.1f} ms, {1000 * long:.1f} ms; ratio {long / none:.2f}")
    database.close()


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--summaries", type=int, default=2000, help="Of each process.")
    parser.add_argument(
        "--rate", type=float, default=0, help="Points per second of all processes; 0: as fast as it goes."
    )
    options = parser.parse_args()
    database = Database(options.url)
    upgrade_database(database)
    rewinds(options.url)
    appends(options.url, database, options.processes, options.summaries, options.rate)
    database.close()


if __name__ == "__main__":
    main()
