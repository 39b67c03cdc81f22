"""The user's path to a trained CartPole-v1, from POST to SUCCEEDED, against a program with Stable-Baselines3.

    python -m benchmarks.cartpole [--rounds 3] [--only ludus vector dummy] [--json FILE]

100,000 steps of the preset `cartpole`, 8 environments, one thread each. Ours: a warm `ludus up` gets `POST /v1/runs`,
then a shell starts `ludus simulate gymnasium:CartPole-v1 --count 2 --envs 4`, or as the arm `vector` one process with
`gymnasium-vec:CartPole-v1 --envs 8`; the clock runs from the POST to
SUCCEEDED, so the start of the simulators' processes is in it, and the start of the server is not. Theirs
(`peers/sb3_cartpole.py`): PPO with the same hyperparameters, its environments in its own process (`DummyVecEnv`) or in
8 others (`SubprocVecEnv`); the clock runs from the start of the process to its end, imports included. Both are also
given without what comes before the first step: ours from the moment when both simulators have joined, theirs `learn`
alone. Processor time is that of all processes of a side meanwhile: ours with the whole server. The arms run in turns.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path

import psutil
import yaml

from ludus.client import Client
from server.config.presets import read_preset
from tests.e2e.stack import LUDUS, LudusUp, environment

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / "benchmarks" / "peers" / "sb3_cartpole.py"
ENVIRONMENTS = 8
WARM_SECONDS = 5.0
"""Seconds until a worker has imported everything for the next run, after its start or after a run."""


@dataclass(frozen=True)
class Time:
    """One run of one arm, in seconds."""

    wall: float
    training: float
    """Of it, without what comes before the first step."""
    processor: float


def processor_seconds(root: psutil.Process) -> float:
    """Return the processor time of a process and everything below it, the dead included."""
    total = 0.0
    for process in (root, *root.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def ludus(stack: LudusUp, client: Client, game: str, simulators: int) -> Time:
    """Train once with our server; `simulators` processes have its eight environments."""
    time.sleep(WARM_SECONDS)
    config = yaml.safe_load(read_preset("cartpole"))
    root = psutil.Process(stack.process.pid)
    used = processor_seconds(root) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    began = time.time()
    run = client.runs.create(config)
    command = [*LUDUS, "simulate", game, "--run", run.id, "--server", stack.gateway]
    command += ["--count", str(simulators), "--envs", str(ENVIRONMENTS // simulators)]
    shell = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    ended = client.runs.wait(run.id, timeout=300)
    wall = time.time() - began
    assert ended.state == "SUCCEEDED", f"{ended.state}: {ended.stop_reason} {ended.stop_detail}"
    shell.wait()
    used = processor_seconds(root) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - used
    joined = [event.at for event in client.events.list(run.id) if event.type == "simulator_connected"]
    return Time(wall, began + wall - max(joined[:simulators]).timestamp(), used)


def stable_baselines3(kind: str) -> Time:
    """Train once with Stable-Baselines3, its environments as `kind` says."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.time()
    output = subprocess.run([sys.executable, PEER, kind], check=True, capture_output=True, env=environment()).stdout
    wall = time.time() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Time(wall, json.loads(output)["learn"], sum(after[:2]) - sum(before[:2]))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", nargs="+", choices=("ludus", "vector", "dummy", "subproc"), help="arms; all by default"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stack = LudusUp(Path(folder) / "home")
        try:
            with stack.client() as client:
                arms: dict[str, Callable[[], Time]] = {
                    "ludus": partial(ludus, stack, client, "gymnasium:CartPole-v1", 2),
                    "vector": partial(ludus, stack, client, "gymnasium-vec:CartPole-v1", 1),
                    "dummy": partial(stable_baselines3, "dummy"),
                    "subproc": partial(stable_baselines3, "subproc"),
                }
                figures: dict[str, list[Time]] = {name: [] for name in options.only or arms}
                for _ in range(options.rounds):
                    for name, times in figures.items():
                        times.append(arms[name]())
                        print(f"{name:<10}", times[-1], flush=True)
        finally:
            stack.stop()
    medians = {
        name: Time(*(statistics.median(column) for column in zip(*map(astuple, times), strict=True)))
        for name, times in figures.items()
    }
    print(f"{'seconds':<10}{'wall':>8}{'training':>10}{'processor':>11}{'wall / ours':>13}{'training / ours':>17}")
    for name, each in medians.items():
        ours = medians.get("ludus", each)
        print(
            f"{name:<10}{each.wall:>8.2f}{each.training:>10.2f}{each.processor:>11.2f}{each.wall / ours.wall:>13.2f}"
            f"{each.training / ours.training:>17.2f}"
        )
    if options.json:
        rounds = {name: [asdict(each) for each in times] for name, times in figures.items()}
        options.json.write_text(json.dumps(rounds, indent=2))


if __name__ == "__main__":
    main()
