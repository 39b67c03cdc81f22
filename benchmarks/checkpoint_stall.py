"""Checkpoint stall: how much longer an action takes while a checkpoint is written (`threaded: true`).

    python benchmarks/checkpoint_stall.py [--json FILE] [--seconds 20] [--rows 500000]

A trainer runs alone, without a server; one simulator of 12 agents of 3DBall's size acts 100 times a second and records
the time of each answer. Two cases: PPO, and SAC with its replay buffer saved, both with 2 x 256. Windows of one
second that end when a checkpoint is complete are compared with all others: the stall is the median of the longest wait
in the former, minus that in the latter. Bar: 50 ms.

This process measures the time in which the learner is blocked by the copy of its state, for a replay buffer of `--rows`
transitions, and the time to write it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import yaml

from benchmarks.alone import environment
from benchmarks.replay import VECTORS, segment
from ludus.sdk import Actions, BehaviorSpec, ResetInfo, Simulation, StepBuilder, connect
from worker.experience.replay import ReplayBuffer
from worker.trainer.checkpoint import bytes_of, copied, save

BAR_SECONDS = 0.05
AGENTS, EPISODE, PAUSE_SECONDS, WINDOW_SECONDS = 12, 200, 0.01, 1.0
SETTLED_SECONDS = 5.0
"""Seconds for the first updates and exports, which import and compile."""
NETWORK = {"hidden_units": 256, "num_layers": 2, "normalize": True}
CASES: dict[str, dict[str, Any]] = {
    "ppo": {"trainer_type": "ppo", "hyperparameters": {"batch_size": 256, "buffer_size": 2048}},
    "sac": {
        "trainer_type": "sac",
        "hyperparameters": {
            "batch_size": 128,
            "buffer_size": 500_000,
            "buffer_init_steps": 1000,
            "steps_per_update": 50,
            "save_replay_buffer": True,
        },
    },
}


@dataclass(frozen=True)
class Result:
    """Milliseconds; medians over windows of one second."""

    case: str
    checkpoints: int
    with_checkpoint: float
    """Longest wait for an answer in a second that ends with a checkpoint."""
    without: float
    stall: float
    typical: float
    """Median wait for an answer."""


class Paced(Simulation):
    """Acts at a fixed pace and notes when it asked and when it was answered."""

    behaviors = (BehaviorSpec("3DBall", VECTORS.observations, VECTORS.actions),)

    def __init__(self) -> None:
        self.waits: list[tuple[float, float]] = []
        """(when it was answered, seconds waited)."""
        self._asked = 0.0
        self._turns = 0
        self._random = np.random.default_rng(1)

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:  # noqa: ARG002
        """Begin with all agents."""
        self._decide(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:  # noqa: ARG002
        """Note the wait, pause, and ask again."""
        now = time.monotonic()
        self.waits.append((now, now - self._asked))
        time.sleep(PAUSE_SECONDS)
        self._turns += 1
        if self._turns % EPISODE == 0:
            for agent in range(AGENTS):
                builder.end_episode(agent, self._random.standard_normal(8, dtype=np.float32), reward=1.0)
        self._decide(builder)

    def _decide(self, builder: StepBuilder) -> None:
        for agent in range(AGENTS):
            builder.request_decision(agent, self._random.standard_normal(8, dtype=np.float32), reward=0.1)
        self._asked = time.monotonic()


def measure(case: str, seconds: float) -> Result:
    """Train for some seconds, with a checkpoint every two or so."""
    behavior = {
        **CASES[case],
        "network_settings": NETWORK,
        "max_steps": 10_000_000,
        "time_horizon": 64,
        "summary_freq": 10_000,
        "checkpoint_interval": 2000,
        "threaded": True,
    }
    game, written = Paced(), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(yaml.safe_dump({"behaviors": {"3DBall": behavior}, "seed": 1}))
        trainer = subprocess.Popen(
            [sys.executable, "-m", "worker.trainer", str(config), "--scratch", folder],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
            text=True,
        )
        assert trainer.stdout is not None
        ends = time.monotonic() + 60 + seconds
        for line in trainer.stdout:
            message = json.loads(line)
            if message["type"] == "listening":
                address = message["endpoints"][0]["address"]
                keywords = {"run": "alone", "server": address}
                threading.Thread(target=connect, args=(game,), kwargs=keywords, daemon=True).start()
            elif message["type"] == "event" and message["name"] == "behavior_admitted":
                ends = time.monotonic() + SETTLED_SECONDS + seconds
            elif message["type"] == "checkpoint_written":
                written.append(time.monotonic())
            if time.monotonic() > ends:
                break
        trainer.kill()
        trainer.wait()
    return compare(case, game.waits, written)


def compare(case: str, waits: list[tuple[float, float]], written: list[float]) -> Result:
    """Compare the seconds before a checkpoint was complete with all other seconds."""
    begin = waits[0][0] + SETTLED_SECONDS
    kept = [(at, wait) for at, wait in waits if at >= begin]
    windows = [at for at in written if at - WINDOW_SECONDS >= begin]
    assert windows, "no checkpoint was written; measure for longer"
    during = [
        max((wait for at, wait in kept if end - WINDOW_SECONDS <= at <= end + 0.05), default=0.0) for end in windows
    ]
    others: dict[int, float] = {}
    for at, wait in kept:
        if not any(end - WINDOW_SECONDS <= at <= end + 0.05 for end in windows):
            second = int((at - begin) / WINDOW_SECONDS)
            others[second] = max(others.get(second, 0.0), wait)
    with_checkpoint, without = statistics.median(during), statistics.median(others.values())
    typical = statistics.median(wait for _, wait in kept)
    figures = (with_checkpoint, without, with_checkpoint - without, typical)
    return Result(case, len(windows), *(round(1000 * each, 1) for each in figures))


def copy(rows: int) -> dict[str, float]:
    """Return the seconds for copying and for writing a replay buffer."""
    buffer = ReplayBuffer(VECTORS, rows)
    for episode in range(rows // 1000):
        buffer.store(segment(VECTORS, 1000, episode))
    state = buffer.state_dict()
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        kept = copied(state)
        times.append(time.perf_counter() - begin)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        save(Path(folder), kept)
        writing = time.perf_counter() - begin
    return {
        "rows": rows,
        "megabytes": round(bytes_of(state) / 1e6, 1),
        "copy_ms": round(1000 * statistics.median(times), 1),
        "write_ms": round(1000 * writing, 1),
    }


def main() -> None:
    """Measure, print, and fail when the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rows", type=int, default=500_000)
    options = parser.parse_args()
    copying = copy(options.rows)
    print(
        f"copy of {copying['rows']} transitions ({copying['megabytes']} MB): {copying['copy_ms']} ms, "
        f"writing them: {copying['write_ms']} ms"
    )
    results = [measure(case, options.seconds) for case in CASES]
    print("case  checkpoints  longest wait with | without a checkpoint, stall, typical wait (ms)")
    for result in results:
        print(
            f"{result.case:5} {result.checkpoints:10}  {result.with_checkpoint:8} | {result.without:8}, "
            f"{result.stall:8}, {result.typical:8}"
        )
    if options.json:
        options.json.write_text(json.dumps({"copy": copying, "stall": [asdict(each) for each in results]}, indent=2))
    sys.exit(any(result.stall > 1000 * BAR_SECONDS for result in results))


if __name__ == "__main__":
    main()
