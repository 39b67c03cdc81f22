"""Results of real runs of ML-Agents 1.1.0: `tests/data/mlagents-results`, a checkpoint and the model beside it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from ludus.demonstrations import Demonstration, write
from ludus.protocol.spec import BehaviorSpec
from server.config.resolution import resolve
from tests.ludus.demonstrations.shown import make_demonstration
from tests.worker.rollouts import make_spec
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.build import Demonstrations, build_algorithm
from worker.trainer.initialization import initialize

FOLDER = Path(__file__).parents[2] / "data" / "mlagents-results"
SPECS: dict[str, BehaviorSpec] = {
    "ppo-lstm-curiosity-rnd-curriculum": make_spec(continuous=2, branches=(3, 2)),
    "sac-replay-buffer": make_spec(continuous=2, branches=(3, 2)),
    "selfplay-gail-vail-bc": make_spec(branches=(3, 3, 2)),
}
RESULTS = sorted(SPECS)
DEMONSTRATION = f"dem_{'0' * 26}"


class Result:
    """One of them. Its demonstration is another one: networks don't depend on it."""

    def __init__(self, name: str) -> None:
        self.checkpoint = FOLDER / name / "checkpoint.pt"
        self.model = FOLDER / name / "A.onnx"
        self.spec = replace(SPECS[name], name="A")
        self._folder = FOLDER / name

    def section(self) -> dict[str, Any]:
        """Return the behavior's section as it was, demonstrations by id."""
        section: dict[str, Any] = yaml.safe_load((self._folder / "configuration.yaml").read_text())["behaviors"]["A"]
        del section["self_play"]
        for imitating in (section["behavioral_cloning"], section["reward_signals"].get("gail")):
            if imitating is not None:
                del imitating["demo_path"]
                imitating["demonstrations"] = [DEMONSTRATION]
        return section

    def built(self, folder: Path | None = None) -> tuple[Algorithm, Any]:
        """Return the algorithm that the configuration asks for, new, and its section."""
        config = resolve({"behaviors": {"A": self.section()}}).behaviors["A"]
        paths = {}
        if config.behavioral_cloning is not None:
            assert folder is not None, "a place for the demonstration is needed"
            shown: Demonstration = make_demonstration(self.spec, lengths=(30, 40))
            write(shown, folder / "shown.npz")
            paths = {DEMONSTRATION: str(folder / "shown.npz")}
        return build_algorithm(config, self.spec, torch.device("cpu"), 1, Demonstrations(paths)), config

    def initialized(self, folder: Path | None = None) -> Algorithm:
        """Return it with the weights of the checkpoint."""
        algorithm, config = self.built(folder)
        initialize(algorithm, config, self.spec, "checkpoint.pt", self.checkpoint)
        return algorithm

    def seen(self, rows: int) -> tuple[list[Tensor], Tensor, Tensor | None]:
        """Return observations, masks and memories."""
        generator = torch.Generator().manual_seed(7)
        observations = [3.0 * torch.randn(rows, *each.shape, generator=generator) for each in self.spec.observations]
        masks = torch.rand(rows, self.spec.actions.mask_size, generator=generator) > 0.3
        size = 8 if "lstm" in self._folder.name else 0
        return observations, masks, torch.randn(rows, size, generator=generator) if size else None
