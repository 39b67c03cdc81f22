"""Waiting simulators: the processor time that a gateway spends on simulators whose runs are queued.

    python -m benchmarks.waiting [--simulators 10000] [--runs 100] [--seconds 60] [--polling] [--url postgresql+...]

Simulators join with the SDK's own client, each over a connection of its own, from four processes; the gateway is a
process of its own. Prints its processor time per simulator and minute while they wait, the requests that they sent, and
how long after a run's collectors listen its simulators have found them. With `--polling` they ask twice a second, as
clients do that know nothing of `max_wait_seconds`.
"""

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from itertools import pairwise
from pathlib import Path

import psutil

from ludus.config.run import RunConfig
from ludus.protocol import options as protocol_options
from ludus.sdk import join
from ludus.sdk.join import JoinClient, Target
from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.ports import listens
from server.lifecycle.attempts import AttemptLedger
from server.lifecycle.claims.repository import RunQueue
from server.lifecycle.service import RunService
from server.runs.repository import NewRun, RunRepository
from tests.factories import RecordingWakeUp
from tests.ports import free_port
from tests.waiting import eventually

CONFIG = {"behaviors": {"CartPole": {"trainer_type": "ppo"}}, "seed": 1}
PROCESSES = 4
TOGETHER = 50
"""Simulators of a process that connect at once."""


async def wait_in_runs(server: str, runs: int, numbers: range) -> None:
    """Join as so many simulators; print the time at which each has found its run's collectors."""
    connecting = asyncio.Semaphore(TOGETHER)

    async def find(number: int) -> None:
        target = Target(server, f"run-{number % runs}", token="")
        async with connecting:
            client = JoinClient(target, lambda *_: None, "benchmark")
            client.open()
            await client.gateway.channel_ready()  # else thousands would connect at once
        found = await client.find()
        print(f"{number % runs} {time.time()}", flush=True)
        await found.close()  # type: ignore[union-attr]  # no run ends here
        await client.close()

    await asyncio.gather(*map(find, numbers))


def measure(options: argparse.Namespace, folder: Path, url: str) -> None:
    """Start everything, wait, let a run begin, and print."""
    database = Database(url)
    upgrade_database(database)
    for number in range(options.runs):
        with database.write() as session:
            new = NewRun(RunConfig.model_validate(CONFIG), name=f"run-{number}")
            RunService(session, RecordingWakeUp()).create(new)
    port, metrics = free_port(), free_port()
    server = f"127.0.0.1:{port}"
    environment = {
        **os.environ,
        "LUDUS_HOME": str(folder),
        "LUDUS_DATABASE__URL": url,
        "LUDUS_GATEWAY__PORT": str(port),
        "LUDUS_TELEMETRY__GATEWAY_PORT": str(metrics),
        "LUDUS_LOG__LEVEL": "error",
    }
    gateway = psutil.Popen([sys.executable, "-m", "ludus.cli", "gateway"], env=environment)
    cuts = [options.simulators * part // PROCESSES for part in range(PROCESSES + 1)]
    parts = [range(first, last) for first, last in pairwise(cuts)]
    simulators: list[subprocess.Popen[str]] = []
    try:
        eventually(lambda: listens(f"127.0.0.1:{metrics}"), "the gateway listens")
        for part in parts:
            command = [sys.executable, "-m", "benchmarks.waiting", "--server", server]
            command += ["--part", f"{part.start}:{part.stop}"]
            command += ["--runs", str(options.runs), *(["--polling"] if options.polling else [])]
            simulators.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        if options.polling:
            eventually(lambda: figures(metrics)["joins"] > options.simulators, "all have asked", 600)
        else:
            eventually(lambda: all_wait(metrics, options.simulators), "all wait", 600)
        before, used = figures(metrics), processor(gateway)
        time.sleep(options.seconds)
        after, spent = figures(metrics), processor(gateway) - used
        per_minute = 60 / options.seconds / options.simulators
        print(
            f"{options.simulators} simulators of {options.runs} runs: gateway {spent * per_minute * 1e3:.2f} ms of "
            f"processor time per simulator and minute ({100 * spent / options.seconds:.0f} % of a core), "
            f"{(after['joins'] - before['joins']) * per_minute:.2f} answers per simulator and minute, "
            f"{gateway.memory_info().rss >> 20} MiB"
        )
        claim = RunQueue(database).claim("worker-1", 600)
        assert claim is not None
        with database.read() as session:
            started = int((RunRepository(session).get(claim.run_id).name or "").removeprefix("run-"))
        AttemptLedger(database, claim).listening([{"address": server, "index": 0}])
        began = time.time()
        delays: list[float] = []
        for process, part in zip(simulators, parts, strict=True):
            assert process.stdout is not None
            for _ in range(sum(each % options.runs == started for each in part)):
                run, moment = process.stdout.readline().split()
                assert int(run) == started
                delays.append(float(moment) - began)
        print(
            f"a run starts: {len(delays)} simulators have found it after {statistics.median(delays):.2f} s (median), "
            f"{max(delays):.2f} s (the last)"
        )
    finally:
        for process in simulators:
            process.kill()
            process.wait()
        gateway.terminate()
        gateway.wait()
        database.close()


def all_wait(port: int, simulators: int) -> bool:
    """Tell whether a gateway holds so many joins; while thousands connect, it may not even say."""
    try:
        return figures(port)["held"] == simulators
    except OSError:
        return False


def processor(process: psutil.Process) -> float:
    """Return the processor seconds of a process."""
    times = process.cpu_times()
    return float(times.user + times.system)


def figures(port: int) -> dict[str, float]:
    """Return how many joins a gateway holds and has answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = [line.rpartition(" ") for line in response.read().decode().splitlines()]
    count = 'ludus_gateway_call_seconds_count{call="join"'
    return {
        "held": sum(float(value) for name, _, value in lines if name == "ludus_gateway_held_joins"),
        "joins": sum(float(value) for name, _, value in lines if name.startswith(count)),
    }


def main() -> None:
    """Measure and print; with --part be a process of simulators."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulators", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--polling", action="store_true")
    parser.add_argument("--url", help="An empty database; a file in a temporary folder by default.")
    parser.add_argument("--server", help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if options.part:
        plain = protocol_options.client_options
        # Else gRPC gives all simulators of a process one connection.
        own = ("grpc.use_local_subchannel_pool", 1)
        join.client_options = lambda host: [*plain(host), own]  # type: ignore[attr-defined]  # imported there
        if options.polling:
            join.HOLD_SECONDS = 0  # type: ignore[misc]  # as older clients
        first, last = map(int, options.part.split(":"))
        asyncio.run(wait_in_runs(options.server, options.runs, range(first, last)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measure(options, folder, options.url or f"sqlite:///{folder / 'ludus.db'}")


if __name__ == "__main__":
    main()
