"""Keys of a configuration, each against its default: the figures behind `ludus recommend`.

    python -m benchmarks.keys [--seeds 5] [--figures]

Trains each task with one key changed and without, writes every score into `ludus/config/measurements.json`, and
continues after an interruption: what is there is not trained again. `--figures` trains nothing, and only computes the
figures of all scores again. The game, the collector's recorder and the algorithm are the real ones, in one process with
one thread.

A score is the mean over the rounds of the second half of the steps, of the mean return of the episodes that ended in
each: it tells how soon a task is learned, and how well. Where none ended, the returns so far count. Hyperparameters are
the same for all tasks of a trainer, but for what `TASKS` says, and were chosen before any key was measured: they are
none that a key was tuned for.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from ludus.statistics import compare_groups
from tests.toys.balance import Ball
from tests.toys.classic import Classic
from tests.toys.playing import training

MEASUREMENTS: Final = Path(__file__).resolve().parent.parent / "ludus" / "config" / "measurements.json"
PPO: Final = {"batch_size": 64, "buffer_size": 1024, "num_epoch": 4, "learning_rate": 1e-3, "beta": 0.005}
SAC: Final = {"batch_size": 128, "buffer_size": 20_000, "buffer_init_steps": 500, "learning_rate": 1e-3}
PLAIN: Final = {
    "reward_signals": ["extrinsic"],
    "network_settings.memory": None,
    "behavioral_cloning": None,
    "self_play": None,
}
"""What all runs here have in common: policies without memory that learn by the game's rewards alone."""
NEAR: Final = 10
"""Factor by which a run may be shorter or longer than the measured ones."""
SOURCE: Final = "benchmarks/keys.py"
CONTINUOUS: Final = {"Pendulum-v1", "MountainCarContinuous-v0", "ball on a plate"}


class Task(NamedTuple):
    """A game and the budget of its runs."""

    game: str
    steps: int
    agents: int = 8
    settings: dict[str, Any] = {}  # noqa: RUF012  never changed


TASKS: Final = {
    "ppo": (
        Task("CartPole-v1", 30_000),
        Task("Acrobot-v1", 30_000),
        Task("Pendulum-v1", 40_000, settings={"gamma": 0.9}),
        Task("MountainCarContinuous-v0", 20_000),
        Task("ball on a plate", 20_000),
        Task("FrozenLake-v1", 40_000),
        Task("CliffWalking-v1", 40_000),
        Task("Taxi-v4", 40_000),
    ),
    "sac": (
        Task("Pendulum-v1", 5_000, agents=1),
        Task("ball on a plate", 5_000, agents=4),
        Task("MountainCarContinuous-v0", 20_000, agents=1, settings={"steps_per_update": 4, "gamma": 0.999}),
    ),
}


class Change(NamedTuple):
    """A key with another value than its default, under a trainer."""

    trainer: str
    key: str
    value: Any
    default: Any


CHANGES: Final = (
    Change("ppo", "network_settings.normalize", True, False),
    Change("ppo", "network_settings.activation", "tanh", "swish"),
    Change("sac", "network_settings.hidden_type", "layer_norm", "dense"),
    Change("ppo", "hyperparameters.normalize_values", True, False),
    Change("sac", "hyperparameters.exploration_noise", "pink", "white"),
    Change("ppo", "hyperparameters.max_grad_norm", 0.5, None),
    Change("ppo", "network_settings.hidden_type", "layer_norm", "dense"),
    Change("sac", "network_settings.normalize", True, False),
    Change("sac", "network_settings.hidden_type", "simba", "dense"),
)


def score(trainer: str, task: Task, seed: int, change: Change | None) -> float:
    """Train one run; return the mean return of the episodes that ended in the second half of its steps."""
    numbers = {**(PPO if trainer == "ppo" else SAC), **task.settings}
    network: dict[str, Any] = {"hidden_units": 64}
    if change is not None:
        section, _, key = change.key.partition(".")
        (network if section == "network_settings" else numbers)[key] = change.value
    game: Any = Ball(agents=task.agents, seed=seed)
    if task.game != "ball on a plate":
        game = Classic(task.game, agents=task.agents, seed=seed)
    trained = training(game, trainer=trainer, seed=seed, network=network, **numbers)
    returns = list[float]()
    while trained.step < task.steps:
        trained.advance()
        mean = game.score()
        if trained.step > task.steps / 2 and not math.isnan(mean):
            returns.append(mean)
    return round(fmean(returns or game.sums.tolist()), 3)


def entries(stored: list[dict[str, Any]], seeds: int) -> Iterator[str]:
    """Train what is missing, one seed after the other; yield a line for each."""
    plain = {  # scores with the default, which all keys of a trainer share
        (row["when"]["trainer_type"], task["task"]): task["without"]
        for row in stored
        for task in row["tasks"]
        if row["source"] == SOURCE
    }
    for change in CHANGES:
        found = [row for row in stored if (row["when"]["trainer_type"], row["key"], row["value"]) == change[:3]]
        row = found[0] if found else {"key": change.key, "value": change.value, "default": change.default}
        if not found:
            row |= {"when": {"trainer_type": change.trainer, **PLAIN}, "source": SOURCE, "tasks": []}
        for task in TASKS[change.trainer]:
            if [known for known in row["tasks"] if known["task"] == task.game and len(known["with"]) >= seeds]:
                continue
            without = plain.setdefault((change.trainer, task.game), [])
            changed = list[float]()
            for scores, variant in ((without, None), (changed, change)):
                for seed in range(len(scores) + 1, seeds + 1):
                    began = time.monotonic()
                    scores.append(score(change.trainer, task, seed, variant))
                    yield f"{change.trainer} {variant} {task.game} {seed} {scores[-1]} {time.monotonic() - began:.0f} s"
            actions = "continuous" if task.game in CONTINUOUS else "discrete"
            row["tasks"].append(
                {
                    "task": task.game,
                    "actions": actions,
                    "steps": task.steps,
                    "without": without[:seeds],
                    "with": changed,
                }
            )
            row["date"] = datetime.now(UTC).date().isoformat()
            if row not in stored:
                stored.append(row)
            write(stored)


def figures(without: Sequence[Sequence[float]], changed: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the probability of improvement of scores (tasks, runs), its 95 % interval, and the p-value."""
    found = compare_groups(np.array(without).T, np.array(changed).T)
    probability = found.probability
    ends = {
        name: None if end is None else round(end, 3)
        for name, end in (("low", probability.low), ("high", probability.high))
    }
    return {"probability": {"value": round(probability.value, 3), **ends}, "p_value": float(f"{found.p_value:.2g}")}


def write(rows: list[dict[str, Any]]) -> None:
    """Write the rows, with the figures that follow from their scores."""
    for row in rows:
        tasks = row["tasks"]
        for task in tasks:
            task.update(figures([task["without"]], [task["with"]]))
        row.update(figures([task["without"] for task in tasks], [task["with"] for task in tasks]))
        steps = [task["steps"] for task in tasks]
        row["when"]["max_steps"] = {"min": min(steps) // NEAR, "max": max(steps) * NEAR}
    MEASUREMENTS.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--figures", action="store_true", help="train nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    stored = json.loads(MEASUREMENTS.read_text()) if MEASUREMENTS.exists() else []
    for line in [] if options.figures else entries(stored, options.seeds):
        print(line, flush=True)
    write(stored)


if __name__ == "__main__":
    main()
