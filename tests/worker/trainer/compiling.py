"""A process that compiles an algorithm's updates in the background, and prints what became of it as JSON.

With a file as an argument the compiled updates are those of a rank. A process of its own, because shapes are checked at
every call in test processes, which is not what would be compiled.
"""

import json
import sys
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist

from ludus.config.behavior import PPOConfig
from tests.worker.rollouts import make_spec, random_rollout
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.build import Demonstrations, build_algorithm
from worker.learning.data_parallel import process_group
from worker.trainer.compilation import BackgroundCompilation

SPEC = make_spec(observations=(4,), branches=(2,))
CONFIG = PPOConfig.model_validate(
    {
        "hyperparameters": {"batch_size": 32, "buffer_size": 64, "num_epoch": 1, "beta_schedule": "constant"},
        "network_settings": {"hidden_units": 8, "num_layers": 1},
    }
)


def build() -> Algorithm:
    return build_algorithm(CONFIG, SPEC, torch.device("cpu"), 1, Demonstrations({}))


def main() -> None:
    """Update an algorithm that is compiled meanwhile, and one that is not."""
    torch.set_num_threads(1)
    if sys.argv[1:]:
        dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
    events: list[str] = []
    algorithm, eager = build(), build()
    compilation = BackgroundCompilation(algorithm, build, lambda name, message: events.append(name))
    rollouts = [
        random_rollout(SPEC, [32, 32], np.random.default_rng(seed), log_probs=np.full((64, 1), -0.7))
        for seed in range(6)
    ]
    waited = []
    for step, rollout in enumerate(rollouts):
        if step == 2:  # two updates while it is compiled
            compilation.join(200.0)
        begin = time.perf_counter()
        compilation.before_update(rollout, step * 64)
        waited.append(time.perf_counter() - begin)
        # In a group of this process alone everything is exchanged, and stays what it is.
        with process_group() if sys.argv[1:] else nullcontext():
            algorithm.update(rollout, step * 64)
        eager.update(rollout, step * 64)
    difference = float(np.abs(algorithm.flat_weights() - eager.flat_weights()).max())
    moved = float(np.abs(algorithm.flat_weights() - build().flat_weights()).max())
    sys.stdout.write(json.dumps({"events": events, "waited": waited, "difference": difference, "moved": moved}) + "\n")


if __name__ == "__main__":
    main()
