"""Edge collectors against a local one: the learner's processor time, bytes on the wire, latency behind 40 ms.

    python -m benchmarks.edge [--seconds 15] [--rounds 2] [--only edge-2] [--json FILE]
    python -m benchmarks.edge --crowd 40 [--seconds 120]

Each arm is a run of `ludus up`, with `ludus collect` for each edge collector and games in processes of their own (12
agents that see 8 numbers and give 2, as Unity's 3DBall; their steps cost nothing). A proxy carries what collectors and
server say to each other, counts its bytes, and holds it up for half the round trip where one is asked for. Processor
time is that of the trainer process alone, and of the trainer with its collectors or its edge reader. `--crowd` starts
so many edge collectors with four games each, and watches the memory of learner, reader and gateway (PSS: learner and
reader share the arena).
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ludus.collector.arena import ArenaLayout
from ludus.protocol.batches import DecisionBatch
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder, connect
from tests.e2e.stack import LUDUS, LudusUp, environment
from tests.ports import free_port
from tests.waiting import eventually

AGENTS = 12
SPEC = BehaviorSpec("Ball", (ObservationSpec((8,)),), ActionSpec(2))
FAR = "127.0.0.2"
"""Where the proxy listens: the address that the worker advertises."""
WARM_STEPS = 20_000
GAMES = 4
"""Game processes in every arm but the crowd."""


# The processes of an arm ---------------------------------------------------------------------------------------------


class Ball(Simulation):
    """Agents that are never done. Notes how long each action takes to come."""

    behaviors = (SPEC,)

    def __init__(self) -> None:
        self.latencies = deque[float](maxlen=200_000)
        self._random = np.random.default_rng(1)
        self._asked = 0.0

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        """Begin."""
        del start
        self._ask(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        """Play on."""
        del actions
        self.latencies.append(time.perf_counter() - self._asked)
        self._ask(builder)

    def _ask(self, builder: StepBuilder) -> None:
        seen = self._random.normal(size=(AGENTS, 8)).astype(np.float32)
        ids, rewards = np.arange(AGENTS, dtype=np.int32), np.ones(AGENTS, np.float32)
        builder.request_decisions(DecisionBatch(ids, rewards, (seen,)), behavior=SPEC.name)
        self._asked = time.perf_counter()


def play(run: str, server: str, report: Path, count: int) -> None:
    """Be some games until the run ends; then write the latencies of their newer actions, in seconds."""
    games = [Ball() for _ in range(count)]
    threads = [threading.Thread(target=connect, args=(game,), kwargs={"run": run, "server": server}) for game in games]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    late = np.concatenate([np.array(game.latencies)[len(game.latencies) // 2 :] for game in games])
    report.write_text(json.dumps({"p50": float(np.quantile(late, 0.5)), "p99": float(np.quantile(late, 0.99))}))


async def carry(lines: list[tuple[str, int]], delay: float, counts: Path) -> None:
    """Be the proxy: carry TCP from `FAR` to this host, at the same ports, and keep writing how many bytes went by."""
    carried = 0

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal carried
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await line.get()
                await asyncio.sleep(due - time.monotonic())
                writer.write(data)
                if not data:
                    writer.close()
                    return

        delivering = asyncio.ensure_future(deliver())
        data = b" "
        while data:
            with contextlib.suppress(ConnectionError):
                data = await reader.read(1 << 18)
            carried += len(data)
            line.put_nowait((time.monotonic() + delay, data))
        await delivering

    async def accept(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(pipe(reader, far_writer), pipe(far_reader, writer), return_exceptions=True)

    for host, port in lines:
        await asyncio.start_server(partial(accept, port), host, port)
    while True:
        newest = counts.with_suffix(".new")
        newest.write_text(str(carried))
        newest.replace(counts)
        await asyncio.sleep(0.1)


# Arms ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """Where the games' actions are computed, and how far away that is."""

    name: str
    collectors: int = 0
    """Edge collectors; 0: one local collector."""
    round_trip: float = 0.0
    """Seconds."""
    threaded: bool = False
    processes: int = GAMES
    """Of games."""
    games: int = 1
    """In each of them."""


ARMS = (
    Arm("local"),
    Arm("edge-1", 1),
    Arm("edge-2", 2),
    Arm("edge-4", 4),
    Arm("local-threaded", threaded=True),
    Arm("edge-40ms", 1, 0.040),
    Arm("edge-40ms-threaded", 1, 0.040, threaded=True),
)
AGAINST = {arm.name: "local-threaded" if arm.threaded else "local" for arm in ARMS}


def document(arm: Arm) -> dict[str, Any]:
    """Return the run's configuration: ML-Agents' 3DBall, for as long as we want."""
    hyper = {"batch_size": 64, "buffer_size": 12_000, "learning_rate": 3e-4, "num_epoch": 3}
    return {
        "behaviors": {
            SPEC.name: {
                "trainer_type": "ppo",
                "hyperparameters": hyper,
                "network_settings": {"normalize": True, "hidden_units": 128, "num_layers": 2},
                "time_horizon": 1000,
                "max_steps": 10**9,
                "summary_freq": 12_000,
                "threaded": arm.threaded,
            }
        },
        "seed": 1,
        "simulators": {"collectors": {"local": 0 if arm.collectors else 1, "edge": arm.collectors}},
    }


@contextlib.contextmanager
def started(command: list[str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process, and end it."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment(), start_new_session=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running(arm: Arm, scratch: Path) -> Iterator[tuple[LudusUp, str, Path, list[Path]]]:
    """Start everything; yield the stack, the run's id, the proxy's count, and the files of the games' latencies."""
    first = free_port(arm.collectors + 2)
    ports = range(first, first + arm.collectors + 2)
    stack = LudusUp(
        scratch / "home",
        LUDUS_WORKER__PORT_RANGE=f"[{ports[0]}, {ports[-1]}]",
        LUDUS_WORKER__ADVERTISE_HOST=FAR if arm.collectors else "127.0.0.1",
    )
    this, counts, log = [sys.executable, "-m", "benchmarks.edge"], scratch / "carried", scratch / "log"
    reports = [scratch / f"game-{number}.json" for number in range(arm.processes)]
    with contextlib.ExitStack() as over:
        over.callback(stack.stop)
        gateway = int(stack.gateway.rpartition(":")[2])
        if arm.collectors:
            lines = json.dumps([(FAR, port) for port in (gateway, *ports)])
            over.enter_context(started([*this, "--carry", lines, str(arm.round_trip / 2), str(counts)], log))
            eventually(counts.exists, "the proxy listens")
        run = stack.client().runs.create(document(arm), name=arm.name).id
        servers = [stack.gateway]
        if arm.collectors:
            near = free_port(arm.collectors)
            servers = [f"127.0.0.1:{near + number}" for number in range(arm.collectors)]
            for number in range(arm.collectors):
                command = [*LUDUS, "collect", run, "--port", str(near + number), "--server", f"{FAR}:{gateway}"]
                over.enter_context(started(command, log))
        for number, report in enumerate(reports):
            command = [*this, "--play", run, servers[number % len(servers)], str(report), str(arm.games)]
            over.enter_context(started(command, log))
        yield stack, run, counts, reports


def processor_seconds(processes: list[psutil.Process]) -> float:
    """Return the processor time of some processes so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def measure(arm: Arm, seconds: float) -> dict[str, float]:
    """Run one arm, and return its figures."""
    with tempfile.TemporaryDirectory() as folder, running(arm, Path(folder)) as (stack, run, counts, reports):
        client = stack.client()

        def step() -> int:
            return client.runs.get(run).step

        eventually(lambda: step() >= WARM_STEPS, "the run is warm", 240)
        trainer = stack.processes("worker.trainer")
        beside = stack.processes("worker.collectors") + stack.processes("worker.collectors.edge.reader")
        before = step()
        eventually(lambda: step() > before, "a round is learned from", 60)
        begin, at = step(), time.monotonic()
        used, used_beside = processor_seconds(trainer), processor_seconds(beside)
        bytes_before = int(counts.read_text()) if arm.collectors else 0
        time.sleep(seconds)
        before = step()
        eventually(lambda: step() > before, "a round is learned from", 60)  # windows are of whole rounds
        steps, elapsed = step() - begin, time.monotonic() - at
        used, used_beside = processor_seconds(trainer) - used, processor_seconds(beside) - used_beside
        carried = (int(counts.read_text()) if arm.collectors else 0) - bytes_before
        client.runs.stop(run)
        eventually(lambda: all(report.exists() for report in reports), "the games end", 60)
        latencies = [json.loads(report.read_text()) for report in reports]
    columns = sum(column.row_bytes for column in ArenaLayout(SPEC, 1, 1).columns())
    return {
        "steps_per_second": steps / elapsed,
        "trainer_cpu_ms_per_1000": 1e6 * used / steps,
        "host_cpu_ms_per_1000": 1e6 * (used + used_beside) / steps,
        "bytes_per_step": carried / steps,
        "bytes_against_columns": carried / steps / columns,
        "p50_ms": 1e3 * statistics.median(each["p50"] for each in latencies),
        "p99_ms": 1e3 * statistics.median(each["p99"] for each in latencies),
    }


def crowd(collectors: int, seconds: float) -> None:
    """Print the memory of the parts of a run with many edge collectors, every tenth of the time."""
    with tempfile.TemporaryDirectory() as folder:
        arm = Arm("crowd", collectors, processes=collectors, games=4)
        with running(arm, Path(folder)) as (stack, run, _, _):
            client = stack.client()
            eventually(lambda: client.runs.get(run).step >= WARM_STEPS, "the run is warm", 600)
            parts = {
                "learner": stack.processes("worker.trainer"),
                "reader": stack.processes("worker.collectors.edge.reader"),
                "gateway": [stack.children()["gateway"]],
            }
            for _ in range(11):
                now = client.runs.get(run)
                memory = {
                    name: f"{sum(each.memory_full_info().pss for each in processes) / 2**20:.0f} MiB"
                    for name, processes in parts.items()
                }
                print(f"step {now.step:>11,}  {now.state}  simulators {now.simulators}  {memory}", flush=True)
                time.sleep(seconds / 10)


def main() -> None:
    """Measure the arms in turn, and print each against its local one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each measurement")
    parser.add_argument("--rounds", type=int, default=2, help="how often each arm is measured, in turn")
    parser.add_argument("--only", action="append", choices=[arm.name for arm in ARMS], help="an arm; all by default")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--crowd", type=int, help="so many edge collectors with four games each, in place of the arms")
    parser.add_argument("--play", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--carry", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play is not None:
        run, server, report, count = options.play
        return play(run, server, Path(report), int(count))
    if options.carry is not None:
        lines, delay, counts = options.carry
        return asyncio.run(carry([(host, port) for host, port in json.loads(lines)], float(delay), Path(counts)))
    if options.crowd is not None:
        return crowd(options.crowd, options.seconds)
    chosen = [arm for arm in ARMS if options.only is None or arm.name in options.only]
    measured: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in chosen}
    for _ in range(options.rounds):
        for arm in chosen:
            measured[arm.name].append(measure(arm, options.seconds))
            print(arm.name, {key: round(value, 2) for key, value in measured[arm.name][-1].items()}, flush=True)
    medians = {
        name: {key: statistics.median(each[key] for each in figures) for key in figures[0]}
        for name, figures in measured.items()
    }
    for name, figures in medians.items():
        against = medians.get(AGAINST[name])
        if against is not None and against is not figures:
            ratios = {key: round(figures[key] / against[key], 2) for key in figures if against[key]}
            print(f"{name} / {AGAINST[name]}: {ratios}")
    if options.json is not None:
        options.json.write_text(json.dumps({"cores": os.cpu_count(), "arms": medians}, indent=1))
    return None


if __name__ == "__main__":
    main()
