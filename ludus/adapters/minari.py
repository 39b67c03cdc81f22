"""Datasets of Minari (https://minari.farama.org) as demonstrations: folders with `data/main_data.hdf5`.

Observations and actions get the form that `ludus simulate gymnasium:NAME` gives them (`ludus.adapters.spaces`): a
policy that learned from the dataset plays the environment. Actions of a Box with bounds are scaled to [-1, 1].

    data/metadata.json                  observation_space and action_space, as JSON (older: attributes of the file)
    data/main_data.hdf5 / episode_0     observations (T + 1), actions, rewards, terminations, truncations (T)

h5py is imported when a dataset is read. Datasets of the format `arrow` are refused; so are pixels' and text spaces that
have no counterpart.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from ludus.adapters.spaces import ActionDecoder, ObservationEncoder, Space, UnsupportedSpace, choices, leaves
from ludus.demonstrations import Demonstration, DemonstrationError, merge
from ludus.paths import AnyPath
from ludus.protocol.batches import Array
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk.errors import GameMistake
from ludus.sdk.values import LARGEST

DATA: Final = Path("data/main_data.hdf5")
METADATA: Final = Path("data/metadata.json")
PARTS: Final = ("observations", "actions", "rewards", "terminations", "truncations")


def read_minari(folder: AnyPath, behavior: str) -> Demonstration:
    """Read a dataset. Raise `DemonstrationError` with the file, and the episode in it."""
    path = Path(folder) / DATA
    try:
        import h5py  # noqa: PLC0415  # see above
    except ImportError:
        raise DemonstrationError("reading Minari needs h5py: pip install 'ludus[datasets]'", path) from None
    try:
        with h5py.File(path) as file:
            described = _described(Path(folder) / METADATA, file.attrs)
            encoder = ObservationEncoder(described["observation_space"])
            space = described["action_space"]
            spec = BehaviorSpec(behavior, encoder.specs, ActionDecoder(space).spec)
            return merge([_episode(file[name], name, spec, encoder, space) for name in _names(file)])
    except DemonstrationError as error:
        raise DemonstrationError(error.problem, path) from None
    except (UnsupportedSpace, OSError) as error:
        raise DemonstrationError(f"it cannot be read: {error}", path) from None


def _names(file: Mapping[str, Any]) -> list[str]:
    """Return the groups of episodes in their order."""
    names = [name for name in file if name.startswith("episode_")]
    if not names:
        raise DemonstrationError("it has no episode; record at least one")
    return sorted(names, key=lambda name: int(name.removeprefix("episode_")))


def _described(metadata: Path, attributes: Mapping[str, Any]) -> dict[str, Space]:
    """Return the spaces of a dataset, by their keys."""
    described = json.loads(metadata.read_text()) if metadata.exists() else attributes
    found = {}
    for key in ("observation_space", "action_space"):
        if key not in described:
            raise DemonstrationError(f"neither {METADATA} nor the file's attributes have {key}; write it with Minari")
        text = described[key]
        found[key] = _space(json.loads(text) if isinstance(text, str | bytes) else text)
    return found


def _space(text: Mapping[str, Any]) -> Space:
    """Return a space that Minari has written down."""
    match text["type"]:
        case "Box":
            shape, dtype = tuple(text["shape"]), np.dtype(text["dtype"])
            low, high = (np.array(text[key], dtype).reshape(shape) for key in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            return spaces.Discrete(int(text["n"]), start=int(text.get("start", 0)))
        case "MultiDiscrete":
            return spaces.MultiDiscrete(text["nvec"])
        case "MultiBinary":
            return spaces.MultiBinary(text["n"])
        case "Dict":
            return spaces.Dict({key: _space(inner) for key, inner in text["subspaces"].items()})
        case "Tuple":
            return spaces.Tuple([_space(inner) for inner in text["subspaces"]])
        case kind:
            raise DemonstrationError(f"it has a space of type {kind}, which has no counterpart")


def _episode(
    group: Any, name: str, spec: BehaviorSpec, encoder: ObservationEncoder, action_space: Space
) -> Demonstration:
    missing = [part for part in PARTS if part not in group]
    if missing:
        raise DemonstrationError(f"{name} has no {', '.join(missing)}")
    rewards, terminated, truncated = (np.asarray(group[part]) for part in PARTS[2:])
    steps = len(rewards)
    for part, column in (("rewards", rewards), ("terminations", terminated), ("truncations", truncated)):
        if column.shape != (steps,) or not np.isfinite(column).all():
            raise DemonstrationError(f"{name}: {part} must be {steps} finite numbers, and has the shape {column.shape}")
    try:
        observations = encoder.batch(_value(group["observations"]), steps + 1)
    except GameMistake as error:
        raise DemonstrationError(f"{name}: {error}") from None
    continuous, discrete = _acted(_value(group["actions"]), action_space, steps, name)
    for column in (*observations, continuous):
        if not np.isfinite(column).all():
            raise DemonstrationError(f"{name} holds a number that is not finite; leave that episode out")
    ending = np.zeros((2, steps), np.bool_)
    ending[0, -1] = terminated[-1]
    ending[1, -1] = truncated[-1] and not terminated[-1]
    return Demonstration(
        spec=spec,
        observations=tuple(part[:-1] for part in observations),
        continuous=continuous,
        discrete=discrete,
        rewards=rewards.astype(np.float32),
        terminated=ending[0],
        truncated=ending[1],
        starts=np.zeros(1, np.int64),
        final_observations=tuple(part[-1:] for part in observations),
        from_start=np.ones(1, np.bool_),
    )


def _value(node: Any) -> Any:
    """Return what HDF5 holds as a batch of a space's values: groups are dictionaries, or tuples (`_index_0`, ...)."""
    if not hasattr(node, "keys"):
        return np.asarray(node)
    if all(key.startswith("_index_") for key in node):
        return tuple(_value(node[f"_index_{index}"]) for index in range(len(node)))
    return {key: _value(node[key]) for key in node}


def _acted(values: Any, space: Space, steps: int, name: str) -> tuple[Array, Array]:
    """Return a batch of actions as columns: continuous ones within [-1, 1], and choices from 0 on."""
    continuous, discrete = [np.zeros((steps, 0), np.float32)], [np.zeros((steps, 0), np.int32)]
    for path, leaf in leaves(space, (), "action"):
        column = values
        for key in path:
            column = column[key]
        column = np.asarray(column).reshape(len(column), -1)
        if len(column) != steps:
            raise DemonstrationError(f"{name} has {steps} rewards and {len(column)} actions")
        if isinstance(leaf, spaces.Box):
            low, high = (bound.reshape(-1).astype(np.float64) for bound in (leaf.low, leaf.high))
            bounded = (np.abs(low) < LARGEST) & (np.abs(high) < LARGEST)  # as `ActionDecoder` has it
            scaled = 2 * (column - np.where(bounded, low, -1.0)) / np.where(bounded, high - low, 2.0) - 1
            if (np.abs(scaled) > 1 + 1e-4).any():
                row, place = np.argwhere(np.abs(scaled) > 1 + 1e-4)[0].tolist()
                raise DemonstrationError(
                    f"{name}: action {place} is {column[row, place]:g} in step {row}, outside of {leaf}"
                )
            continuous.append(scaled.clip(-1, 1).astype(np.float32))
        else:
            _, start = choices(leaf)
            discrete.append((column - start).astype(np.int32))
    return np.concatenate(continuous, 1), np.concatenate(discrete, 1)
