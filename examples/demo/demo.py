"""A training run from start to end on the embedded stack: `make demo`.

Starts `ludus up`, queues a PPO run on CartPole-v1 over HTTP, starts simulators that join over gRPC, shows the rising
return, downloads the ONNX model when the run has ended and plays it. Its files are in the folder `demo`. The exit code
is 0 only if the downloaded model plays well, after at most 150,000 agent steps.
"""

import json
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from ludus.adapters.gymnasium import make_simulation
from ludus.child_process import ChildProcess
from ludus.client import TERMINAL_STATES, ApiError, Client
from ludus.play.episodes import SEED_PARAMETER, play_episode
from ludus.play.model import ModelPlayer
from ludus.schemas import Run
from server.kit.processes import MARK, sweep

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "server" / "config" / "presets" / "cartpole.yaml"
FOLDER = ROOT / "demo"

ENVIRONMENT = "CartPole-v1"
BEHAVIOR = "CartPole"
PROCESSES, ENVIRONMENTS = 2, 4
SOLVED = 475.0
"""Mean return at which Gymnasium calls CartPole-v1 solved; the maximum is 500."""
STEP_LIMIT = 150_000
EPISODES = 20
FIRST_SEED = 1000
RETURN_KEY = "Environment/Cumulative Reward"


class Failed(Exception):
    """The demo cannot continue; the message says why."""


@contextmanager
def background(mark: str, *command: str, descriptors: tuple[int, ...] = (), log: Path | None = None) -> Iterator[None]:
    """Run a `ludus` command in a child process, and end it in any case, first by SIGINT.

    The child leads a session of its own: Ctrl-C reaches only the demo, which then stops its parts in order. The kernel
    ends the child if the demo is killed.
    """
    output = None if log is None else log.open("wb")
    process = ChildProcess(
        [sys.executable, "-m", "ludus.cli", *command],
        environment={**os.environ, MARK: mark},
        descriptors=descriptors,
        own_group=True,
        tied=True,
        stdout=output,
        stderr=output,
    )
    try:
        yield
    finally:
        process.interrupt()
        process.end(30.0)
        if output is not None:
            output.close()


@contextmanager
def stack(mark: str) -> Iterator[dict[str, str]]:
    """Start `ludus up` on a fresh home and free ports; yield its addresses when it is ready."""
    reading, writing = os.pipe()
    home = FOLDER / "home"
    shutil.rmtree(home, ignore_errors=True)
    command = ("up", "--home", str(home), "--port", "0", "--gateway-port", "0", "--ready-fd", str(writing))
    with background(mark, *command, descriptors=(writing,)), os.fdopen(reading, encoding="utf-8") as pipe:
        os.close(writing)
        line = pipe.readline()  # no line if `ludus up` cannot start; it prints the reason itself
        if not line:
            raise Failed("`ludus up` did not start")
        yield json.loads(line)


def train(client: Client, run: Run) -> Run:
    """Follow the run to its end and return it.

    The return is high long before the end. But a policy with a high learning rate can still forget the first steps of
    an episode, and long episodes have few first steps to show it. It settles because the learning rate falls to 0.
    """
    began = time.monotonic()
    while True:
        run = client.runs.get(run.id)
        metrics = client.metrics.list(run.id)
        latest = {metric.key: metric.value or 0.0 for metric in metrics}
        step = max([run.step, *(metric.step for metric in metrics)])  # a run's own step comes with each heartbeat
        show(client, run, step, latest, time.monotonic() - began)
        if run.state in TERMINAL_STATES:
            sys.stdout.write("\n")
            return run
        time.sleep(0.5)


def show(client: Client, run: Run, step: int, latest: Mapping[str, float], seconds: float) -> None:
    """Write the progress line over the last one."""
    parts = [
        f"{seconds:5.1f} s",
        f"{run.state:<9}",
        f"step {step:>7,}",
        f"mean return {latest[RETURN_KEY]:5.1f}" if RETURN_KEY in latest else "mean return   ...",
        f"{latest.get('Performance/Agent Steps per Second', 0.0):6,.0f} steps/s",
        f"policy version {latest.get('Policy/Version', 0.0):3.0f}",
        f"simulators {len(client.simulators.list(run.id, state='connected'))}",
    ]
    line = "  ".join(parts)
    sys.stdout.write(f"\r{line}" if sys.stdout.isatty() else f"{line}\n")
    sys.stdout.flush()


def play(model: Path) -> list[float]:
    """Play episodes with fixed seeds, taking the model's deterministic actions; return their returns."""
    simulation = make_simulation(ENVIRONMENT, seed_parameter=SEED_PARAMETER)
    (spec,) = simulation.behaviors
    players = {spec.name: ModelPlayer(model, spec)}
    seeds = range(FIRST_SEED, FIRST_SEED + EPISODES)
    return [play_episode(simulation, players, seed)[spec.name].cumulative_reward for seed in seeds]


def draw_curve(client: Client, run: Run, target: Path) -> None:
    """Draw the learning curve from the metrics API."""
    mpl.use("Agg")
    figure, axes = plt.subplots(figsize=(8, 4.5))
    for series in client.metrics.series(run.id, RETURN_KEY):
        axes.plot(series.steps, np.array(series.values, float), label=series.behavior)
    axes.axhline(SOLVED, color="grey", linestyle="--", linewidth=1, label=f"solved ({SOLVED:g})")
    axes.set(xlabel="agent steps", ylabel="mean return", title=f"{ENVIRONMENT}, run {run.name}")
    axes.legend()
    figure.tight_layout()
    figure.savefig(target, dpi=120)


def demo(mark: str) -> bool:
    """Run all parts; return whether the task was solved."""
    FOLDER.mkdir(exist_ok=True)
    with stack(mark) as addresses, Client(addresses["api"]) as client:
        document = CONFIG.read_text(encoding="utf-8")
        run = client.runs.create(document, name="cartpole-demo", tags=["demo"])
        sys.stdout.write(f"watch it in a browser: {addresses['api']}/ui/runs/{run.id}\n")
        simulate = (
            "simulate",
            f"gymnasium:{ENVIRONMENT}",
            *("--run", run.id, "--server", addresses["gateway"], "--behavior", BEHAVIOR),
            *("--count", str(PROCESSES), "--envs", str(ENVIRONMENTS)),
        )
        with background(mark, *simulate, log=FOLDER / "simulators.log"):
            run = train(client, run)
        sys.stdout.write(f"the run ended: {run.state} ({run.stop_reason}) after {run.step:,} agent steps\n")
        if run.state != "SUCCEEDED":
            raise Failed(f"the run did not succeed: {run.stop_detail or run.stop_reason}")
        model = client.checkpoints.download(run.id, "latest", f"{BEHAVIOR}.onnx", FOLDER / f"{BEHAVIOR}.onnx")
        draw_curve(client, run, FOLDER / "learning-curve.png")
        returns = play(model)
    mean = fmean(returns)
    solved = mean >= SOLVED and run.step <= STEP_LIMIT
    sys.stdout.write(
        f"{EPISODES} episodes with {model.relative_to(ROOT)} (onnxruntime, deterministic actions): "
        f"mean return {mean:.1f}, lowest {min(returns):.0f}\n"
        f"{'SOLVED' if solved else 'NOT solved'}: {SOLVED:g} within {STEP_LIMIT:,} agent steps was the goal\n"
        f"learning curve: demo/learning-curve.png\n"
    )
    return solved


def main() -> None:
    """Run the demo and leave no process behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    mark = uuid.uuid4().hex
    began = time.monotonic()
    try:
        solved = demo(mark)
    except KeyboardInterrupt:
        sys.stdout.write("\ninterrupted\n")
        sys.exit(130)  # what shells say of a program that Ctrl-C ended
    except (Failed, ApiError) as error:
        sys.exit(f"failed: {error}")
    finally:
        sweep(mark)
        sys.stdout.write(f"{time.monotonic() - began:.0f} s in all\n")
        sys.stdout.flush()
    sys.exit(0 if solved else 1)


if __name__ == "__main__":
    main()
