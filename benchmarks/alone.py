"""A trainer that runs alone, with simulators beside it: the whole data plane and learner, without a server."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import yaml

LUDUS = [sys.executable, "-m", "ludus.cli"]


def environment() -> dict[str, str]:
    """Return this environment without settings of Ludus, with one thread for numerical libraries."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LUDUS_")}
    return {**kept, "OMP_NUM_THREADS": "1"}


@dataclass
class Outcome:
    """Files and times of a trainer that has ended."""

    folder: Path
    """Of its last checkpoint."""
    outcome: str
    step: int
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Metric key -> (step, value)."""
    times: list[tuple[int, float]] = field(default_factory=list)
    """(step, seconds since 1970) of each summary."""
    solved_seconds: float = float("inf")
    """Seconds from the registration of the first behavior to the summary with the required mean return."""
    solved_step: int = 0


def train(
    document: Mapping[str, Any],
    scratch: Path,
    game: str,
    environments: int,
    simulators: int = 1,
    *,
    until: float | None = None,
    seconds: float = 240.0,
    arguments: Sequence[str] = (),
) -> Outcome:
    """Train to the end with `simulators` processes of `environments` environments of a game, as in `ludus simulate`.

    A game without the name of an adapter is an id of Gymnasium. `until` is a mean return at which the trainer is asked
    to stop, with a checkpoint. `arguments` are further ones of `ludus simulate`.
    """
    scratch.mkdir(parents=True)
    config = scratch / "config.yaml"
    config.write_text(yaml.safe_dump(dict(document)))
    with (scratch / "trainer.log").open("wb") as log:
        trainer = subprocess.Popen(
            [sys.executable, "-m", "worker.trainer", str(config), "--scratch", str(scratch)],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(),
            text=True,
            start_new_session=True,
        )
    begin = 0.0
    with _ended(trainer):
        assert trainer.stdout is not None
        outcome = Outcome(scratch, "none", 0)
        with contextlib.ExitStack() as players:
            deadline = time.monotonic() + seconds
            for line in trainer.stdout:
                assert time.monotonic() < deadline, "it takes too long"
                message = json.loads(line)
                match message["type"]:
                    case "listening":
                        address = message["endpoints"][0]["address"]
                        players.enter_context(_players(address, game, environments, simulators, arguments))
                    case "event" if message["name"] == "behavior_admitted":
                        begin = time.time()
                    case "metrics":
                        for point in message["points"]:
                            outcome.series.setdefault(point["key"], []).append((point["step"], point["value"]))
                            if point["key"] == "Environment/Cumulative Reward":
                                outcome.times.append((point["step"], point["at"]))
                                if until is not None and point["value"] >= until and not outcome.solved_step:
                                    outcome.solved_step = point["step"]
                                    outcome.solved_seconds = point["at"] - begin
                                    trainer.send_signal(signal.SIGINT)
                    case "checkpoint_written":
                        outcome.folder, outcome.step = Path(message["folder"]), message["step"]
                    case "finished":
                        outcome.outcome = message["outcome"]
        return outcome


def play(model: Path, env_id: str, episodes: int, seed: int = 1000) -> float:
    """Return the mean return of a model's deterministic actions over episodes with fixed seeds."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    env = gymnasium.make(env_id)
    memories = [entry.shape[-1] for entry in session.get_inputs() if entry.name == "recurrent_in"]
    outputs = ["recurrent_out"] if memories else []
    returns = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        total, over = 0.0, False
        memory = [np.zeros((1, 1, size), np.float32) for size in memories]
        while not over:
            feed = {"obs_0": np.asarray(observation, np.float32)[None]}
            feed |= {"recurrent_in": memory[0]} if memory else {}
            if isinstance(env.action_space, gymnasium.spaces.Discrete):
                feed["action_masks"] = np.ones((1, int(env.action_space.n)), np.float32)
                actions, *memory = session.run(["deterministic_discrete_actions", *outputs], feed)
                action: Any = int(actions[0, 0])
            else:
                actions, *memory = session.run(["deterministic_continuous_actions", *outputs], feed)
                assert isinstance(env.action_space, gymnasium.spaces.Box)
                low, high = env.action_space.low, env.action_space.high
                action = low + (actions[0] + 1.0) / 2.0 * (high - low)
            observation, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


@contextlib.contextmanager
def _players(address: str, game: str, environments: int, simulators: int, arguments: Sequence[str]) -> Iterator[None]:
    player = subprocess.Popen(
        [
            *(*LUDUS, "simulate", game if ":" in game else f"gymnasium:{game}", "--run", "alone", "--server", address),
            *("--count", str(simulators), "--envs", str(environments), *arguments),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
    )
    with _ended(player):
        yield


@contextlib.contextmanager
def _ended(process: "subprocess.Popen[Any]") -> Iterator[None]:
    """Leave nothing of a process group behind."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
