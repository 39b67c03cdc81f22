"""Two hundred listeners of event streams: the delay of events, and the cost for clients that list runs.

    python benchmarks/sse.py [--listeners 200] [--seconds 8] [--rounds 3] [--database postgresql+psycopg://...]

A real api process on its own database that demands tokens, listeners in a process of their own, each with a token of
its own, events appended by a third. Rounds without and with listeners alternate; events are appended in both. The
bars: an event reaches a listener within 250 ms of its commit at the 99th percentile, and the 99th percentile of the run
list is at most twice its value without listeners.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import httpx2
import numpy as np
import psutil

from ludus.config.run import RunConfig
from ludus.schemas.tokens import Scope
from server.access.service import TokenService
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.db.projects import DEFAULT
from server.kit.principal import everything
from server.lifecycle.service import RunService
from server.runs.events.repository import Note, record
from server.runs.models import Run
from server.runs.repository import NewRun
from tests.factories import RecordingWakeUp

RUNS = 10
"""Runs that are listened to; the listeners are spread over them."""
LISTED = 300
APPENDS_PER_SECOND = 20
LISTS_PER_SECOND = 25
CONFIG = {"behaviors": {"CartPole": {"trainer_type": "ppo"}}}


def make_runs(database: Database) -> list[str]:
    """Fill the list; return the runs that are listened to."""
    made: list[Run] = []
    for number in range(LISTED):
        with database.write() as session:
            new = NewRun(RunConfig.model_validate(CONFIG), name=f"run-{number}")
            made.append(RunService(session, RecordingWakeUp()).create(new))
    return [run.id for run in made[:RUNS]]


def make_tokens(database: Database, count: int) -> list[str]:
    """Make tokens that may look."""
    with database.write() as session:
        service = TokenService(session, everything("benchmark"))
        return [service.create(f"listener-{number}", [Scope.READ], project=DEFAULT).text for number in range(count)]


async def listen(port: int, run_id: str, token: str, arrivals: list[tuple[str, int, float]], ready: list[str]) -> None:
    """Follow one run, and note when each event arrives."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"GET /v1/runs/{run_id}/events:stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}"
    writer.write(f"{head}\r\n\r\n".encode())
    try:
        while line := await reader.readline():
            if line.startswith(b"id: "):
                arrivals.append((run_id, int(line[4:]), time.monotonic()))
            elif line.startswith(b": hello"):
                ready.append(run_id)
    finally:
        writer.close()


def listeners(port: int, run_ids: list[str], tokens: list[str], pipe: Connection) -> None:
    """Listen until the stop signal; the body of a process."""

    async def all_of_them() -> list[tuple[str, int, float]]:
        arrivals: list[tuple[str, int, float]] = []
        ready: list[str] = []
        tasks = [
            asyncio.create_task(listen(port, run_ids[number % len(run_ids)], token, arrivals, ready))
            for number, token in enumerate(tokens)
        ]
        while len(ready) < len(tokens):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # the past is read
        pipe.send("ready")
        await asyncio.to_thread(pipe.recv)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return arrivals

    pipe.send(asyncio.run(all_of_them()))


def append(url: str, run_ids: list[str], pipe: Connection) -> None:
    """Append events until the stop signal; return the commit time of each. The body of a process."""
    database = Database(url)
    commits: dict[tuple[str, int], float] = {}
    number = 0
    pipe.send("ready")
    while not pipe.poll(1 / APPENDS_PER_SECOND):
        run_id = run_ids[number % len(run_ids)]
        with database.write() as session:
            seq = record(session, run_id, Note("benchmark_event", "Something happened.", data={"number": number}))
        commits[run_id, seq] = time.monotonic()
        number += 1
    database.close()
    pipe.send(commits)


def list_runs(server: str, token: str, seconds: float) -> list[float]:
    """Ask for pages of the run list at a steady rate; return the seconds of each answer."""
    found = []
    with httpx2.Client(base_url=server, timeout=30, headers={"Authorization": f"Bearer {token}"}) as http:
        http.get("/v1/runs")
        end = time.monotonic() + seconds
        due = time.monotonic()
        while due < end:
            time.sleep(max(0.0, due - time.monotonic()))
            began = time.perf_counter()
            http.get("/v1/runs", params={"page_size": 100}).raise_for_status()
            found.append(time.perf_counter() - began)
            due += 1 / LISTS_PER_SECOND
    return found


class Api:
    """A real api process."""

    def __init__(self, home: Path, url: str) -> None:
        listening = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = listening.getsockname()[1]
        self.server = f"http://127.0.0.1:{self.port}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ludus.cli", "server", "--fd", str(listening.fileno())],
            pass_fds=(listening.fileno(),),
            env={
                **os.environ,
                "LUDUS_HOME": str(home),
                "LUDUS_DATABASE__URL": url,
                "LUDUS_LOG__LEVEL": "warning",
                "LUDUS_API__REQUIRE_TOKEN": "true",
            },
        )
        listening.close()
        httpx2.get(f"{self.server}/healthz", timeout=60)

    def processor_seconds(self) -> float:
        """Return the processor time that it has used: the cost that other load on the machine does not distort."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """End the process."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@dataclass
class Round:
    """Measurements of one round, or of several together."""

    lists: list[float] = field(default_factory=list)
    """99th percentile of the run list, in seconds."""
    delays: list[float] = field(default_factory=list)
    """From each commit to each listener, in seconds."""
    processor: list[float] = field(default_factory=list)
    """Processor time that the api used, as a part of the time that passed."""

    def add(self, other: "Round") -> None:
        """Take in another round."""
        self.lists += other.lists
        self.delays += other.delays
        self.processor += other.processor


def measure(api: Api, url: str, run_ids: list[str], lister: str, tokens: list[str], seconds: float) -> Round:
    """Measure one round with a listener for each of the tokens; the runs are listed with that of the `lister`."""
    spawn = multiprocessing.get_context("spawn")
    audience, theirs = spawn.Pipe()
    listening = spawn.Process(target=listeners, args=(api.port, run_ids, tokens, theirs))
    if tokens:
        listening.start()
        assert audience.recv() == "ready"
    writer, other = spawn.Pipe()
    appending = spawn.Process(target=append, args=(url, run_ids, other))
    appending.start()
    assert writer.recv() == "ready"
    time.sleep(0.5)
    began, used = time.monotonic(), api.processor_seconds()
    lists = [p99(list_runs(api.server, lister, seconds))]
    processor = [(api.processor_seconds() - used) / (time.monotonic() - began)]
    writer.send("stop")
    commits: dict[tuple[str, int], float] = writer.recv()
    appending.join()
    if not tokens:
        return Round(lists, [], processor)
    time.sleep(0.5)
    audience.send("stop")
    arrivals: list[tuple[str, int, float]] = audience.recv()
    listening.join()
    fresh = [(run_id, seq, at) for run_id, seq, at in arrivals if (run_id, seq) in commits]
    expected = len(commits) * len(tokens) / len(run_ids)
    assert len(fresh) == expected, f"{len(fresh)} of {expected:.0f} events arrived"
    return Round(lists, [max(0.0, at - commits[run_id, seq]) for run_id, seq, at in fresh], processor)


def main() -> None:
    """Measure, print a table, and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--listeners", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--database", help="A new one on PostgreSQL; by default SQLite.")
    arguments = parser.parse_args()
    count = arguments.listeners - arguments.listeners % RUNS
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        url = arguments.database or f"sqlite:///{home / 'ludus.db'}"
        database = Database(url)
        upgrade_database(database)
        run_ids = make_runs(database)
        lister, *tokens = make_tokens(database, 1 + count)
        api = Api(home, url)
        alone, beside = Round(), Round()
        try:
            for _ in range(arguments.rounds):
                alone.add(measure(api, url, run_ids, lister, [], arguments.seconds))
                beside.add(measure(api, url, run_ids, lister, tokens, arguments.seconds))
        finally:
            api.close()
            database.close()
    report(count, alone, beside)


def p99(seconds: list[float]) -> float:
    """Return the 99th percentile."""
    return float(np.percentile(seconds, 99))


def report(count: int, alone: Round, beside: Round) -> None:
    """Print the result."""
    delays = beside.delays
    ratios = [with_listeners / without for without, with_listeners in zip(alone.lists, beside.lists, strict=True)]
    print(f"{count} listeners, {len(delays):,} events heard, from commit to delivery:")
    middle, late, latest = (1000 * each for each in (median(delays), p99(delays), max(delays)))
    print(f"  p50 {middle:.0f} ms, p99 {late:.0f} ms (bar 250), the latest {latest:.0f} ms")
    print("run list, p99 of each round, without and with listeners:")
    for without, with_listeners in zip(alone.lists, beside.lists, strict=True):
        print(f"  {1000 * without:6.1f} ms  {1000 * with_listeners:6.1f} ms  {with_listeners / without:.2f}x")
    print(f"  median ratio {median(ratios):.2f} (bar 2)")
    quiet, busy = median(alone.processor), median(beside.processor)
    print(f"processor time of the api, medians: {quiet:.1%} without, {busy:.1%} with listeners")
    print(json.dumps({"delivery_p99_ms": round(1000 * p99(delays)), "list_p99_ratio": round(median(ratios), 2)}))


if __name__ == "__main__":
    main()
