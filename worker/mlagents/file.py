"""The contents of ML-Agents' `checkpoint.pt`, read with `weights_only`: nothing in it is executed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

POLICY = "Policy"
"""The module that every file has."""
CONSTANTS = frozenset(
    {
        "version_number",
        "is_continuous_int_deprecated",
        "continuous_act_size_vector",
        "discrete_act_size_vector",
        "act_size_vector_deprecated",
        "memory_size_vector",
    }
)
"""Parameters of a policy that say what the exported model says; the shapes of its layers say the same."""

Shape = tuple[int, ...]


class Unreadable(ValueError):
    """A file is no checkpoint of ML-Agents, or it is damaged."""


class Moments(NamedTuple):
    """Adam's state of each parameter, by the names of ML-Agents' parameters."""

    steps: list[float]
    """Of each parameter: one count as a rule."""
    first: dict[str, Tensor]
    second: dict[str, Tensor]


@dataclass(frozen=True)
class MLAgentsCheckpoint:
    """A file's contents."""

    tensors: Mapping[str, Tensor]
    """Of its networks, by `module/name`."""
    optimizers: Mapping[str, Mapping[str, Any]]
    """States of Adam, by the module's name."""
    step: int
    """The trainer's step when it was written."""

    @classmethod
    def read(cls, path: Path) -> "MLAgentsCheckpoint":
        """Read a file. Raise `Unreadable`."""
        try:
            contents = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file can break torch's reader in any way
            reason = str(error).strip().partition("\n")[0][:300]
            raise Unreadable(
                f"it cannot be read as a checkpoint of tensors ({type(error).__name__}: {reason})"
            ) from error
        if not isinstance(contents, dict) or POLICY not in contents:
            raise Unreadable(f"it has no module {POLICY!r}, so that it is no checkpoint of ML-Agents")
        tensors: dict[str, Tensor] = {}
        optimizers: dict[str, Mapping[str, Any]] = {}
        step = 0
        for module, state in contents.items():
            if not isinstance(module, str) or not isinstance(state, dict):
                raise Unreadable(f"its entry {str(module)[:100]!r} is no state of a module")
            if module == "global_step":
                counts = [value for value in state.values() if isinstance(value, Tensor) and value.numel() == 1]
                step = int(counts[0]) if counts else 0
            elif "param_groups" in state:
                optimizers[module] = state
            else:
                tensors |= {f"{module}/{name}": value for name, value in state.items() if isinstance(value, Tensor)}
        return cls(tensors, optimizers, step)

    def parameters(self, module: str) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of a module's parameters, in Adam's order."""
        return {
            name: tuple(tensor.shape)
            for name, tensor in self.tensors.items()
            if name.startswith(f"{module}/") and ".normalizer." not in name and not self._is_alias(name)
        }

    def moments(self, optimizer: str, parameters: Mapping[str, tuple[int, ...]]) -> Moments | None:
        """Return Adam's moments of parameters, which have these shapes; None if they are missing, or of others."""
        state, names = self.optimizers.get(optimizer), list(parameters)
        if state is None:
            return None
        moments = Moments([], {}, {})
        try:
            if [index for group in state["param_groups"] for index in group["params"]] != [*range(len(names))]:
                return None
            for index, parameter in state["state"].items():
                moments.steps.append(float(parameter["step"]))
                for tensors, key in ((moments.first, "exp_avg"), (moments.second, "exp_avg_sq")):
                    moment: Tensor = parameter[key]
                    if tuple(moment.shape) != parameters[names[index]] or not bool(moment.isfinite().all()):
                        return None
                    tensors[names[index]] = moment
        except (KeyError, TypeError, ValueError, AttributeError):  # not what Adam's state looks like
            return None
        return moments

    def unread(self, read: Iterable[str]) -> list[str]:
        """Return the names of tensors that a translation has no use for."""
        expected = set(read) | {f"{POLICY}/{name}" for name in CONSTANTS}
        return [name for name in self.tensors if name not in expected and not self._is_alias(name)]

    def _is_alias(self, name: str) -> bool:
        """Whether the file has a tensor under a longer name, too."""
        before, separator, after = name.rpartition("processors.")
        if not separator or before.endswith("observation_encoder."):
            return False
        return f"{before}observation_encoder.processors.{after}" in self.tensors
