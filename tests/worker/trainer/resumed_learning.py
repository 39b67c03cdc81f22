"""Learns rounds of made-up experience from the saved state of one behavior, in this process or in a fresh one.

    python -m tests.worker.trainer.resumed_learning FOLDER

goes on in a fresh interpreter: see `go_on`.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ludus.config.behavior import CloneConfig
from ludus.config.run import RunConfig
from tests.toys.wanderers import SPEC
from tests.worker.trainer.made_up_experience import make_round
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.bc import Cloning
from worker.learning.build import Demonstrations, build_algorithm, build_demonstrated
from worker.trainer import checkpoint
from worker.trainer.initialization import resume

BEHAVIOR = "Wanderer"
CLONE_STEPS = 8
"""Gradient steps that stand for an update of a behavior that only imitates."""
CPU = torch.device("cpu")


def build(config: RunConfig, seed: int) -> Algorithm | Cloning:
    """Return the algorithm of the behavior, with the weights that it begins with."""
    section = config.behavior(BEHAVIOR)
    assert section is not None
    if isinstance(section, CloneConfig):
        return build_demonstrated(section, BEHAVIOR, CPU, seed, Demonstrations({}))[0]
    return build_algorithm(section, SPEC, CPU, seed, Demonstrations({}))


@dataclass(frozen=True)
class Job:
    """A configuration, and the run's seed."""

    config: RunConfig
    seed: int = 5

    def learn(self, saved: Mapping[str, Any], first: int, last: int) -> dict[str, Any]:
        """Load a behavior's state and learn the updates `first` to `last` (exclusive); return the state and metrics."""
        section = self.config.behavior(BEHAVIOR)
        assert section is not None
        algorithm, step = build(self.config, self.seed), int(saved["progress"]["step"])
        resume(algorithm, SPEC, saved["algorithm"])
        measured = []
        for number in range(first, last):
            if isinstance(algorithm, Cloning):
                measured.append(algorithm.iterate(CLONE_STEPS))
                continue
            assert not isinstance(section, CloneConfig)
            rollout = make_round(section, SPEC, algorithm, seed=self.seed, number=number)
            step += rollout.steps
            measured.append(dict(algorithm.update(rollout, step) or {}))
        return {"progress": {"step": step}, "algorithm": algorithm.state_dict(), "measured": measured}


def go_on(root: Path) -> None:
    """Go on from each checkpoint `root/NAME/saved` with updates 2 and 3, and write `root/NAME/elsewhere`.

    The configuration is in `root/NAME/config.json`.
    """
    torch.set_num_threads(1)
    for folder in sorted(root.iterdir()):
        job = Job(RunConfig.model_validate(json.loads((folder / "config.json").read_text())))
        end = folder / "elsewhere"
        end.mkdir()
        checkpoint.save(end, {BEHAVIOR: job.learn(checkpoint.load(folder / "saved")[BEHAVIOR], 2, 4)})


if __name__ == "__main__":
    go_on(Path(sys.argv[1]))
