"""The user's path to a trained game of Godot, against godot-rl with Stable-Baselines3: wall time and score.

    python -m benchmarks.godot --peer PYTHON [--rounds 3] [--steps 50000] [--only ludus godot-rl] [--json FILE]

The game is tests/toys/seekers in Debian's godot3-server: 2 copies with 8 agents each, as fast as it can, continuous
actions (SB3 takes no others beside discrete ones). PPO with the same hyperparameters, one thread. Ours: a warm `ludus
up` gets `POST /v1/runs`, then a shell starts `ludus godot`; the clock runs from the POST to SUCCEEDED. Theirs
(`peers/sb3_godot.py`, with the interpreter PYTHON, which has godot-rl 0.8.2): the clock runs from the start of the
process to its end. Both are also given without what comes before the first step, with the processor time of a side, and
with its score: the mean return of its last episodes, 0 at best and about -10 for a game that nobody plays. The arms run
in turns.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cartpole import ROOT, WARM_SECONDS, processor_seconds
from ludus.client import Client
from ludus.metric_keys import SHORT_KEYS
from tests.e2e.stack import LUDUS, LudusUp, environment

PEER = ROOT / "benchmarks" / "peers" / "sb3_godot.py"
GAME = ROOT / "tests" / "toys" / "seekers"
COPIES = 2


@dataclass(frozen=True)
class Figures:
    """One run of one arm, times in seconds."""

    wall: float
    training: float
    """Of it, without what comes before the first step."""
    processor: float
    score: float


def configuration(steps: int) -> dict[str, Any]:
    """Return the run: the hyperparameters of `peers/sb3_godot.py`."""
    return {
        "behaviors": {
            "seeker": {
                "trainer_type": "ppo",
                "max_steps": steps,
                "time_horizon": 64,
                "summary_freq": 2000,
                "checkpoint_interval": steps,
                "hyperparameters": {
                    "batch_size": 128,
                    "buffer_size": 1024,
                    "learning_rate": 3e-3,
                    "beta": 5e-3,
                    "epsilon": 0.2,
                    "lambd": 0.95,
                    "num_epoch": 6,
                    "learning_rate_schedule": "linear",
                    "beta_schedule": "constant",
                    "epsilon_schedule": "constant",
                },
                "network_settings": {"hidden_units": 32, "num_layers": 2},
                "reward_signals": {"extrinsic": {"gamma": 0.99}},
            }
        }
    }


def write_build(folder: Path) -> Path:
    """Write a program that stands for a build of the game: both sides start it in their own way."""
    engine = shutil.which("godot3-server")
    if engine is None:
        raise SystemExit("godot3-server is missing: apt-get install godot3-server")
    build = folder / "seekers.x86_64"
    build.write_text(f'#!/bin/sh\nexec {engine} --path "{GAME}" --fixed-fps 60 "$@"\n')
    build.chmod(0o755)
    return build


def ludus(stack: LudusUp, client: Client, build: Path, steps: int) -> Figures:
    """Train once with our server."""
    time.sleep(WARM_SECONDS)
    root = psutil.Process(stack.process.pid)
    used = processor_seconds(root) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    began = time.time()
    run = client.runs.create(configuration(steps))
    command = [*LUDUS, "godot", run.id, "--env", str(build), "--num-envs", str(COPIES), "--server", stack.gateway]
    shell = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL, cwd=build.parent)
    ended = client.runs.wait(run.id, timeout=1200)
    wall = time.time() - began
    assert ended.state == "SUCCEEDED", f"{ended.state}: {ended.stop_reason} {ended.stop_detail}"
    shell.wait()
    used = processor_seconds(root) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - used
    joined = [event.at for event in client.events.list(run.id) if event.type == "simulator_connected"]
    (score,) = (metric.value for metric in client.metrics.list(run.id) if metric.key == SHORT_KEYS["reward"])
    return Figures(wall, began + wall - max(joined[:COPIES]).timestamp(), used, score or 0.0)


def godot_rl(python: str, build: Path, steps: int) -> Figures:
    """Train once with godot-rl and Stable-Baselines3."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.time()
    command = [python, str(PEER), str(build), str(COPIES), str(steps)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment()).stdout
    wall = time.time() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = json.loads(output.splitlines()[-1])
    return Figures(wall, told["learn"], sum(after[:2]) - sum(before[:2]), told["score"])


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="the interpreter of an environment with godot-rl 0.8.2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--only", nargs="+", choices=("ludus", "godot-rl"), help="arms; all by default")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    names = options.only or ["ludus", "godot-rl"]
    if "godot-rl" in names and options.peer is None:
        parser.error("--peer names the interpreter of an environment with godot-rl 0.8.2; or say --only ludus")
    with tempfile.TemporaryDirectory() as folder:
        build = write_build(Path(folder))
        stack = LudusUp(Path(folder) / "home")
        try:
            with stack.client() as client:
                arms: dict[str, Callable[[], Figures]] = {
                    "ludus": lambda: ludus(stack, client, build, options.steps),
                    "godot-rl": lambda: godot_rl(options.peer, build, options.steps),
                }
                figures: dict[str, list[Figures]] = {name: [] for name in names}
                for _ in range(options.rounds):
                    for name, runs in figures.items():
                        runs.append(arms[name]())
                        print(f"{name:<10}", runs[-1], flush=True)
        finally:
            stack.stop()
    medians = {
        name: Figures(*(statistics.median(column) for column in zip(*map(astuple, runs), strict=True)))
        for name, runs in figures.items()
    }
    print(f"{'':<10}{'wall':>8}{'training':>10}{'processor':>11}{'score':>8}{'wall / ours':>13}{'training / ours':>17}")
    for name, each in medians.items():
        ours = medians.get("ludus", each)
        print(
            f"{name:<10}{each.wall:>8.2f}{each.training:>10.2f}{each.processor:>11.2f}{each.score:>8.2f}"
            f"{each.wall / ours.wall:>13.2f}{each.training / ours.training:>17.2f}"
        )
    if options.json:
        rounds = {name: [asdict(each) for each in runs] for name, runs in figures.items()}
        options.json.write_text(json.dumps(rounds, indent=2))


if __name__ == "__main__":
    main()
