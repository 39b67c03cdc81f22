"""Two ranks on CPUs against one process with the doubled batch: time of an update, and bytes that cross.

    python -m benchmarks.ranks

Both learn from the same number of steps in a round, PPO with 3 epochs of 8 minibatches. They take turns, with one
thread each, so that the ratio is of one machine in one state. A perfect rank would take half of the time.
"""

import platform
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from ludus.config.behavior import PPOConfig
from tests.worker.rollouts import make_spec, random_rollout
from tests.worker.trainer.rank_world import CPU, Pair, build
from worker.experience.rollout import Rollout
from worker.trainer.ranks import EXCHANGED, Ranks

SPEC = make_spec(observations=(32,), continuous=4, branches=())
STEPS, MINIBATCHES, UPDATES = 2048, 8, 9


def section(units: int, steps: int) -> PPOConfig:
    """Return PPO with so many minibatches of a round of `steps`."""
    hyper = {"batch_size": steps // MINIBATCHES, "buffer_size": steps, "num_epoch": 3}
    network = {"hidden_units": units, "num_layers": 2}
    return PPOConfig.model_validate({"hyperparameters": hyper, "network_settings": network})


def round_of(steps: int, seed: int) -> Rollout:
    """Return a round in segments of 64 steps."""
    log_probs = np.full((steps, SPEC.actions.continuous_size), -1.0)
    return random_rollout(SPEC, [64] * (steps // 64), np.random.default_rng(seed), log_probs=log_probs)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, Python {platform.python_version()}, {UPDATES} updates\n")
    print("| network | 2 ranks, s | 1 process, s | ratio | bytes of an update |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        ranks = Ranks(2, CPU, Path(scratch), 60.0)
        try:
            for units in (64, 128, 512):
                pair, alone = Pair(ranks, section(units, STEPS), SPEC), build(section(units, 2 * STEPS), SPEC)
                parts, whole = [round_of(STEPS, seed) for seed in (1, 2)], round_of(2 * STEPS, 3)
                together, single, crossed = list[float](), list[float](), 0.0
                for number in range(UPDATES):
                    began = time.perf_counter()
                    crossed = pair.update(parts[0], parts[1], number)[EXCHANGED]
                    between = time.perf_counter()
                    alone.update(whole, number)
                    together.append(between - began)
                    single.append(time.perf_counter() - between)
                two, one = statistics.median(together), statistics.median(single)
                print(f"| 2 x {units} | {two:.3f} | {one:.3f} | {two / one:.2f} | {crossed:,.0f} |", flush=True)
        finally:
            ranks.close()


if __name__ == "__main__":
    main()
