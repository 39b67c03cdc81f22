"""Exported models as players: ONNX files of ML-Agents' model version 3, as `worker.onnx.export` describes and writes
them.

Needs onnxruntime, which is imported when a model is loaded.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ludus.paths import AnyPath
from ludus.play.players import Player
from ludus.protocol.batches import Array, DecisionBatch, Floats, Ints
from ludus.protocol.spec import BehaviorSpec

VERSION: Final = 3.0
UNSEEN: Final = "unseen_observations"
"""The entry of a model's metadata with the numbers of the observations that its policy does not see, as a JSON list."""


class UnusableModel(ValueError):
    """A file that is no model, or not one for this game. The message says why."""


class ModelPlayer(Player):
    """Plays the actions of a model: the likeliest ones, or with `sample` drawn ones.

    With a `seed` the same model draws the same actions in the same order. onnxruntime seeds a model once, when it is
    loaded: `begin` cannot do it.
    """

    def __init__(self, path: AnyPath, spec: BehaviorSpec, *, sample: bool = False, seed: int | None = None) -> None:
        """Load the model. Raises UnusableModel if it does not fit `spec`."""
        path = Path(path)
        self._session = _load(path, seed)
        self._spec = spec
        self._inputs = {entry.name: list(entry.shape) for entry in self._session.get_inputs()}
        self._unseen: list[int] = json.loads(self._session.get_modelmeta().custom_metadata_map.get(UNSEEN, "[]"))
        outputs = {entry.name for entry in self._session.get_outputs()}
        prefix = "" if sample else "deterministic_"
        self._continuous = f"{prefix}continuous_actions" if spec.actions.continuous_size else None
        self._discrete = f"{prefix}discrete_actions" if spec.actions.discrete_branches else None
        if "version_number" not in outputs:
            raise UnusableModel(f"{path} is no model of ML-Agents' version 3: it has no output version_number")
        self._check(path, outputs)
        self._outputs = [name for name in (self._continuous, self._discrete) if name is not None]
        self._memory: dict[int, Array] = {}
        """Agent -> (1, memory)."""
        if "recurrent_in" in self._inputs:
            self._outputs.append("recurrent_out")

    def act(self, decisions: DecisionBatch) -> tuple[Floats, Ints]:
        """Run the model."""
        agents, count = decisions.agent_ids.tolist(), len(decisions.agent_ids)
        feed = {
            f"obs_{index}": values.astype(np.float32) / np.float32(255 if values.dtype == np.uint8 else 1)
            for index, values in enumerate(decisions.observations)
            if index not in self._unseen
        }
        if "action_masks" in self._inputs:
            masks = decisions.action_masks
            everything = np.ones((count, self._spec.actions.mask_size), np.float32)
            feed["action_masks"] = everything if masks is None else masks.astype(np.float32)
        if "recurrent_in" in self._inputs:
            nothing = np.zeros((1, self._inputs["recurrent_in"][-1]), np.float32)
            feed["recurrent_in"] = np.stack([self._memory.get(agent, nothing) for agent in agents])
        answers = dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))
        if "recurrent_out" in answers:
            self._memory.update(zip(agents, answers["recurrent_out"], strict=True))
        continuous = answers[self._continuous] if self._continuous else np.zeros((count, 0), np.float32)
        discrete = answers[self._discrete] if self._discrete else np.zeros((count, 0), np.int32)
        return continuous, discrete.astype(np.int32)

    def forget(self, agents: Iterable[int]) -> None:
        """Drop the memory of agents whose episode ended."""
        for agent in agents:
            self._memory.pop(agent, None)

    def begin(self, seed: int | None) -> None:  # noqa: ARG002  see above
        """Drop all memory."""
        self._memory.clear()

    def _check(self, path: Path, outputs: set[str]) -> None:
        """Raise UnusableModel unless the model has the observations and actions of the game."""
        sees = [self._inputs[name][1:] for name in sorted(self._inputs, key=_number) if name.startswith("obs_")]
        observations = enumerate(self._spec.observations)
        shown = [list(observation.shape) for index, observation in observations if index not in self._unseen]
        if sees != shown:
            raise UnusableModel(f"{path} sees observations of shapes {sees}, {self._spec.behavior} shows {shown}")
        sizes: dict[str, list[float]] = {"continuous": [], "discrete": []}
        for kind in sizes:
            if f"{kind}_action_output_shape" in outputs:
                sizes[kind] = self._constant(f"{kind}_action_output_shape")
        continuous = [self._spec.actions.continuous_size] if self._spec.actions.continuous_size else []
        branches = list(self._spec.actions.discrete_branches)
        if sizes["continuous"] != continuous or sizes["discrete"] != branches:
            raise UnusableModel(
                f"{path} has {_actions(sizes['continuous'], sizes['discrete'])}, "
                f"{self._spec.behavior} takes {_actions(continuous, branches)}"
            )
        for name in (self._continuous, self._discrete):
            if name is not None and name not in outputs:
                raise UnusableModel(f"{path} has no output {name}: export it again, or let it sample")

    def _constant(self, name: str) -> list[float]:
        """Return an output that depends on no input."""
        blank = {
            key: np.zeros([1, *shape[1:]], np.float32) if key != "action_masks" else np.ones([1, shape[1]], np.float32)
            for key, shape in self._inputs.items()
        }
        (values,) = self._session.run([name], blank)
        return [float(value) for value in np.asarray(values).reshape(-1)]


def _load(path: Path, seed: int | None) -> Any:
    import onnxruntime  # noqa: PLC0415  an optional package
    from onnxruntime.capi import onnxruntime_pybind11_state as errors  # noqa: PLC0415  likewise

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if seed is not None:
        onnxruntime.set_seed(seed)
    unusable = (
        *(errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.InvalidProtobuf, errors.NoModel),
        *(errors.NoSuchFile, errors.NotImplemented, errors.RuntimeException),
    )
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except unusable as error:
        raise UnusableModel(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from error


def _number(name: str) -> int:
    _, _, number = name.rpartition("_")
    return int(number) if number.isdecimal() else -1


def _actions(continuous: Sequence[float], branches: Sequence[float]) -> str:
    parts = [f"{continuous[0]:g} continuous actions"] if continuous else []
    if branches:
        parts.append(f"branches of {', '.join(f'{size:g}' for size in branches)} choices")
    return " and ".join(parts) or "no actions"
