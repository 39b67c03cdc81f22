"""What ML-Agents' own networks answer, and the checkpoints that they would write: `tests/data/mlagents-networks`.

The files there hold names, shapes and answers; every number is made of a name, here as it was there.
"""

import json
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ludus.config.behavior import POCAConfig, PPOConfig, SACConfig
from ludus.protocol.spec import BehaviorSpec
from server.config.resolution import resolve
from server.demonstrations.refs import spec_from_json
from worker.experience.transitions import Transitions
from worker.mlagents.file import MLAgentsCheckpoint

FOLDER = Path(__file__).parents[2] / "data" / "mlagents-networks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
ROWS, MATES = 4, 2
CONSTANTS = ("_vector", "_deprecated", "version_number")
STEPS = 7.0
"""How often each Adam has stepped."""


def numbers(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return what the script beside the files makes of a name."""
    count = int(np.prod(shape, dtype=np.int64))
    bits = (np.arange(count, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(zlib.crc32(name.encode()))) % 2**32
    for _ in range(2):
        bits = ((bits >> np.uint64(16)) ^ bits) * np.uint64(0x45D9F3B) % 2**32
    bits = (bits >> np.uint64(16)) ^ bits
    inputs = max(int(np.prod(shape[1:], dtype=np.int64)), 1)
    scaled: NDArray[np.float32] = ((bits.astype(np.float64) / 2**31 - 1.0) / np.sqrt(inputs)).astype(np.float32)
    return scaled.reshape(shape)


def filling(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return what a tensor of a file is filled with.

    What stands in it twice has the numbers of its longer name, and networks that see the same have the same statistics.
    """
    if "observation_encoder.processors." not in name:
        name = name.replace("processors.", "observation_encoder.processors.")
    if name.startswith("Optimizer:") and ".normalizer." in name:
        name = f"Policy/network_body.{name.partition('network_body.')[2]}"
    name = name.replace("RND-pred", "RND-target") if ".normalizer." in name else name
    if any(constant in name for constant in CONSTANTS):
        return torch.zeros(shape)
    if name.endswith("normalization_steps"):
        return torch.tensor(500)
    if name.endswith("running_variance"):
        return torch.from_numpy(500.0 * (1.5 + numbers(name, shape)))
    if name.endswith("_current_max_agents"):
        return torch.tensor(4)
    return torch.from_numpy(numbers(name, shape).copy())


class Case:
    """One behavior with its configuration, what ML-Agents answered, and its checkpoint."""

    def __init__(self, name: str) -> None:
        self._stored: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
        self.model: dict[str, Any] = self._stored["model"]
        self.answers: dict[str, NDArray[np.float64]] = {
            key: np.array(value) for key, value in self._stored["answers"].items()
        }

    @cached_property
    def spec(self) -> BehaviorSpec:
        return spec_from_json(self._stored["spec"])

    @cached_property
    def config(self) -> PPOConfig | SACConfig | POCAConfig:
        return self.configured()

    def configured(self, **changes: Any) -> Any:
        """Return the configuration with other keys."""
        behavior = {**self._stored["behavior"], **changes}
        signals = behavior["reward_signals"]
        if "gail" in signals:  # whichever: networks don't depend on it
            signals = {**signals, "gail": {**signals["gail"], "demonstrations": [f"dem_{'0' * 26}"]}}
        return resolve({"behaviors": {"A": {**behavior, "reward_signals": signals}}}).behaviors["A"]

    @property
    def columns(self) -> list[int]:
        """Where the values of each of our signals lie in the answers."""
        theirs = list(self._stored["behavior"]["reward_signals"])
        return [theirs.index(name) for name, _ in self.config.reward_signals.active()]

    def contents(self) -> dict[str, Any]:
        """Return what `torch.save` was given. Moments are the weights that they belong to, and twice these."""
        saved: dict[str, Any] = {
            module: {name: filling(f"{module}/{name}", tuple(shape)) for name, (_, *shape) in tensors.items()}
            for module, tensors in self._stored["tensors"].items()
        }
        if self._shared:
            saved["Optimizer:critic"] = saved["Policy"]
        saved["global_step"] = {"_GlobalSteps__global_step": torch.tensor([1234])}
        for optimizer, names in self._stored["optimizers"].items():
            weights = [saved[name.partition("/")[0]][name.partition("/")[2]] for name in names]
            state = {index: adam(weight) for index, weight in enumerate(weights) if weight.is_floating_point()}
            saved[optimizer] = {"state": state, "param_groups": [{"lr": 1e-3, "params": [*range(len(names))]}]}
        if "Optimizer:q_network" in saved:
            branches = len(self.spec.actions.discrete_branches)
            state = {0: adam(torch.arange(1.0, branches + 1)), 1: adam(torch.tensor([9.0]))}
            saved["Optimizer:entropy_optimizer"] = {"state": state, "param_groups": [{"params": [0, 1]}]}
        return saved

    def file(self, folder: Path, contents: dict[str, Any] | None = None) -> MLAgentsCheckpoint:
        """Write the checkpoint and read it."""
        torch.save(self.contents() if contents is None else contents, folder / "checkpoint.pt")
        return MLAgentsCheckpoint.read(folder / "checkpoint.pt")

    @property
    def _shared(self) -> bool:
        return bool(self._stored["behavior"].get("hyperparameters", {}).get("shared_critic"))

    def observations(self, prefix: str = "") -> list[Tensor]:
        """Return what `ROWS` agents see; the last entities are padding."""
        return [self._observation(index, prefix) for index in range(len(self.spec.observations))]

    def _observation(self, index: int, prefix: str) -> Tensor:
        spec = self.spec.observations[index]
        seen = 3.0 * numbers(f"{prefix}obs_{index}", (ROWS, spec.size)).reshape(ROWS, *spec.shape) * np.sqrt(spec.size)
        if len(spec.shape) == 2:
            seen[:, -1] = 0.0
        return torch.from_numpy(seen.astype(np.float32))

    def actions(self, prefix: str = "") -> tuple[Tensor, Tensor]:
        """Return what they do: continuous columns and choices."""
        actions = self.spec.actions
        continuous = torch.from_numpy(numbers(f"{prefix}continuous", (ROWS, actions.continuous_size)).copy())
        choices = [torch.arange(ROWS).remainder(size) for size in actions.discrete_branches]
        return continuous, torch.stack(choices, 1) if choices else torch.zeros(ROWS, 0, dtype=torch.int64)

    def transitions(self) -> Transitions:
        """Return their steps as reward signals see them; every other one ends its episode."""
        pool = [torch.cat(both) for both in zip(self.observations(), self.observations("next "), strict=True)]
        continuous, discrete = self.actions()
        ended, nothing = torch.arange(ROWS).remainder(2).bool(), torch.zeros(ROWS)
        return Transitions(
            observations=pool,
            index=torch.arange(ROWS),
            next_index=torch.arange(ROWS, 2 * ROWS),
            continuous=continuous,
            discrete=discrete,
            rewards=nothing,
            group_rewards=nothing,
            terminated=ended,
            ended=ended,
        )


def remembered(name: str, size: int) -> Tensor | None:
    """Return memories before a step."""
    return torch.from_numpy(numbers(name, (1, ROWS, size))[0].copy()) if size else None


def adam(weight: Tensor) -> dict[str, Tensor]:
    """Return what an Adam might remember of a parameter: its weights, and twice these."""
    return {"step": torch.tensor(STEPS), "exp_avg": weight.clone(), "exp_avg_sq": 2.0 * weight}
