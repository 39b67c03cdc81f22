"""Converts observations of Godot's agents to columns, and actions to JSON objects, as the game's `env_info` describes.

Types decide, not versions: plug-ins of one version number send one object for all agents, or one for each. Keys keep
the order in which the game sent them. Legend: N agents of one behavior.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from ludus.protocol.batches import Array, Floats, Ints
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.protocol.specs import is_name
from ludus.sdk.errors import GameLost, GameMistake
from ludus.sdk.values import REAL, array, described, float32_of, whole

DEFAULT_POLICY: Final = "shared_policy"
MOST_AGENTS: Final = 10_000
CHANNELS: Final = (1, 3, 4)
VECTOR: Final = "; a Vector2 or Vector3 becomes text on the way: append its x, y and z one by one"
_MOST_ELEMENTS: Final = 1 << 24


@dataclass(frozen=True)
class ObservationKey:
    """One entry of an agent's observation."""

    name: str
    shape: tuple[int, ...]
    """`(size,)`, or `(channels, height, width)` of a picture."""
    choices: bool = False
    """Whether the game sends the number of a choice; the run sees one column for each."""

    @property
    def spec(self) -> ObservationSpec:
        """The entry as an observation of a behavior."""
        return ObservationSpec(self.shape, self.name, "uint8" if self.is_picture else "float32")

    @property
    def is_picture(self) -> bool:
        """Whether the entry is a picture, as hexadecimal digits."""
        return len(self.shape) == 3

    def read(self, values: Sequence[Any], agents: Sequence[int]) -> Array:
        """Return the entries of N agents, (N, *shape). Raises GameMistake; GameLost for numbers that are not finite."""
        if not self.is_picture and not self.choices:  # what nearly all games send, at once
            try:
                fast = np.array(values)
            except ValueError:
                fast = np.empty(0, np.object_)
            if fast.dtype.kind in REAL and fast.size == len(values) * self.shape[0]:
                with np.errstate(over="ignore"):
                    column: Floats = fast.reshape(len(values), -1).astype(np.float32)
                if np.isfinite(column).all():
                    return column
        return np.stack([self._row(value, agent) for value, agent in zip(values, agents, strict=True)])

    def _row(self, value: Any, agent: int) -> Array:
        what = f"agent {agent}: its observation {self.name!r}"
        if self.is_picture:
            return self._picture(value, what)
        if self.choices:
            number = whole(value, what, low=0)
            if number >= self.shape[0]:
                raise GameMistake(f"{what} is {number}; its space has the choices 0 to {self.shape[0] - 1}")
            columns = np.zeros(self.shape, np.float32)
            columns[number] = 1.0
            return columns
        text = isinstance(value, str) or (isinstance(value, list) and any(isinstance(part, str) for part in value))
        if isinstance(value, list) and len(self.shape) == 1 and not text:
            value = _flat(value)
        try:
            read = array(value, self.shape, what)
        except GameMistake as mistake:
            raise GameMistake(f"{mistake}{VECTOR if text else ''}") from None
        return _finite(read, what)

    def _picture(self, value: Any, what: str) -> Array:
        channels, height, width = self.shape
        try:
            pixels = bytes.fromhex(value)
        except (TypeError, ValueError):
            raise GameMistake(f"{what} is {described(value)}; pictures are hexadecimal digits") from None
        if len(pixels) != prod(self.shape):
            raise GameMistake(
                f"{what} has {len(pixels)} bytes; a picture of {width} x {height} pixels with {channels} channels has "
                f"{prod(self.shape)}: is get_obs_space that of the sensor?"
            )
        # Rows of interleaved pixels, whatever order of dimensions the game declares.
        return np.frombuffer(pixels, np.uint8).reshape(height, width, channels).transpose(2, 0, 1)


@dataclass(frozen=True)
class ActionKey:
    """One entry of an agent's action."""

    name: str
    size: int
    """Columns; the number of choices of a discrete one."""
    is_discrete: bool


@dataclass(frozen=True)
class Spaces:
    """Converts the observations and actions of a behavior's agents between Godot's JSON and columns."""

    observations: tuple[ObservationKey, ...]
    actions: tuple[ActionKey, ...]

    def behavior(self, name: str) -> BehaviorSpec:
        """Return the spec, which carries names and order for `ludus.games.godot.model`."""
        continuous = sum(key.size for key in self.actions if not key.is_discrete)
        branches = tuple(key.size for key in self.actions if key.is_discrete)
        specs = tuple(key.spec for key in self.observations)
        layout = {
            "engine": "godot",
            "observations": [key.name for key in self.observations],
            "choices": [key.name for key in self.observations if key.choices],
            "actions": [[key.name, key.size, key.is_discrete] for key in self.actions],
        }
        return BehaviorSpec(name, specs, ActionSpec(continuous, branches), json.dumps(layout))

    def read(self, observations: Sequence[Any], agents: Sequence[int]) -> tuple[Array, ...]:
        """Return the observations of N agents as columns. Raises GameMistake, and GameLost for NaN and infinities."""
        for agent, observation in zip(agents, observations, strict=True):
            if not isinstance(observation, dict):
                raise GameMistake(f"agent {agent}: its observation is {described(observation)}; give a dictionary")
            for key in self.observations:
                if key.name not in observation:
                    raise GameMistake(
                        f"agent {agent}: its observation has no {key.name!r}, which get_obs_space names, only "
                        f"{', '.join(map(repr, observation)) or 'nothing'}"
                    )
        return tuple(
            key.read([observation[key.name] for observation in observations], agents) for key in self.observations
        )

    def action(self, continuous: Floats, discrete: Ints) -> dict[str, object]:
        """Return one agent's action, (C,) and (D,), as the game takes it."""
        columns, choices = iter(continuous.tolist()), iter(discrete.tolist())
        return {
            key.name: next(choices) if key.is_discrete else [next(columns) for _ in range(key.size)]
            for key in self.actions
        }


@dataclass(frozen=True)
class GameInfo:
    """A game's answer to `env_info`, one entry for each agent."""

    spaces: tuple[Spaces, ...]
    policies: tuple[str, ...]


def read_info(message: Mapping[str, Any]) -> GameInfo:
    """Read the answer to `env_info`. Raises GameMistake with what to change in the game."""
    count = message.get("n_agents")
    if not isinstance(count, int | float) or not 0 <= count <= MOST_AGENTS or count != int(count):
        raise GameMistake(f"the game's n_agents is {described(count)}; it can be 1 to {MOST_AGENTS}")
    if count == 0:
        raise GameMistake(
            "the game has no agent to train: a scene needs an AIController2D or 3D (group AGENT) whose control mode is "
            "Inherit From Sync, or Training, and a Sync node whose control mode is Training"
        )
    count = int(count)
    views = [_of_each(message, f"{what}_space", count) for what in ("observation", "action")]
    kinds: dict[str, Spaces] = {}
    spaces = []
    for agent, (seen, done) in enumerate(zip(*views, strict=True)):
        text = json.dumps([seen, done])
        if text not in kinds:
            kinds[text] = Spaces(_observations(seen, agent), _actions(done, agent))
        spaces.append(kinds[text])
    policies = message.get("agent_policy_names") or [DEFAULT_POLICY] * count
    if not isinstance(policies, list) or len(policies) != count:
        raise GameMistake(f"the game's agent_policy_names are {described(policies)}; it needs {count} names")
    for agent, policy in enumerate(policies):
        if not isinstance(policy, str) or not is_name(policy):
            raise GameMistake(
                f"agent {agent}: its policy_name is {described(policy)}; give 1 to 200 printable characters"
            )
    return GameInfo(tuple(spaces), tuple(policies))


def behavior_names(policies: Sequence[str], behavior: str | None, teams: Sequence[int]) -> tuple[str, ...]:
    """Return the announced name of each agent: its policy's, or `behavior`, and a team for each policy of several.

    `teams` are those of the agents in the game's order, or one for all. Raises GameMistake where they don't fit.
    """
    order = list(dict.fromkeys(policies))
    if len(teams) not in {0, 1, len(policies)}:
        raise GameMistake(
            f"--teams names {len(teams)} teams, and the game has {len(policies)} agents; name one for each"
        )
    names = []
    for agent, policy in enumerate(policies):
        name = behavior or policy
        if teams:
            name = f"{name}?team={teams[agent if len(teams) > 1 else 0]}"
        elif len(order) > 1 and "?" not in name:
            name = f"{name}?team={order.index(policy)}"
        names.append(name)
    return tuple(names)


def _of_each(message: Mapping[str, Any], field: str, count: int) -> list[Mapping[str, Any]]:
    """Return the space of each agent: older plug-ins send one for all."""
    value = message.get(field)
    values = [value] * count if isinstance(value, dict) else value
    if not isinstance(values, list) or len(values) != count or not all(isinstance(part, dict) for part in values):
        raise GameMistake(f"the game's {field} is {described(value)}; it needs a dictionary for each of {count} agents")
    return values


def _observations(space: Mapping[str, Any], agent: int) -> tuple[ObservationKey, ...]:
    if not space:
        raise GameMistake(f"agent {agent}: its observation space is empty; get_obs needs an entry")
    keys = []
    for name, part in space.items():
        what = f"agent {agent}: the observation space of {name!r}"
        kind, size = _parts(part, "space", what)
        if kind == "discrete":
            keys.append(ObservationKey(name, (_size(size, what),), choices=True))
            continue
        if kind != "box" or not isinstance(size, list) or not size:
            raise GameMistake(f"{what} is {described(part)}; write {{'size': [n], 'space': 'box'}}")
        shape = [_size(side, what) for side in size]
        if len(shape) == 3 and "2d" in name:
            first_is_channels = shape[0] in CHANNELS
            if not first_is_channels and shape[2] not in CHANNELS:
                raise GameMistake(f"{what} has size {size}; a picture has 1, 3 or 4 channels")
            # Old plug-ins declare (width, height, channels).
            keys.append(ObservationKey(name, tuple(shape) if first_is_channels else (shape[2], shape[1], shape[0])))
        else:
            keys.append(ObservationKey(name, (prod(shape),)))
        if prod(keys[-1].shape) > _MOST_ELEMENTS:
            raise GameMistake(f"{what} has {prod(keys[-1].shape)} elements; at most {_MOST_ELEMENTS} are possible")
    return tuple(keys)


def _actions(space: Mapping[str, Any], agent: int) -> tuple[ActionKey, ...]:
    if not space:
        raise GameMistake(f"agent {agent}: its action space is empty; get_action_space needs an entry")
    keys = []
    for name, part in space.items():
        what = f"agent {agent}: the action {name!r}"
        kind, size = _parts(part, "action_type", what)
        if kind not in {"continuous", "discrete"}:
            raise GameMistake(f"{what} has the action_type {described(kind)}; write 'continuous' or 'discrete'")
        keys.append(ActionKey(name, _size(size, what), kind == "discrete"))
    return tuple(keys)


def _parts(space: Any, kind: str, what: str) -> tuple[Any, Any]:
    if not isinstance(space, dict) or "size" not in space:
        raise GameMistake(f"{what} is {described(space)}; it needs a 'size' and a {kind!r}")
    return space.get(kind), space["size"]


def _size(value: Any, what: str) -> int:
    """Return a size, which Godot may send as a float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= _MOST_ELEMENTS:
        raise GameMistake(f"{what} has size {described(value)}; give a whole number from 1 on")
    if value != int(value):
        raise GameMistake(f"{what} has size {value}; give a whole number from 1 on")
    return int(value)


def _flat(value: list[Any]) -> list[Any]:
    """Return the numbers of nested lists as one list; a list of another form stays as it is."""
    try:
        flat = np.array(value)
    except ValueError:
        return value
    return list(flat.reshape(-1)) if flat.dtype.kind in REAL else value


def _finite(read: Array, what: str) -> Floats:
    """Return numbers as float32. A game whose numbers are not finite may be right again after a new start."""
    try:
        return float32_of(read[None], what)[0]  # type: ignore[no-any-return]  # numpy's stubs say Any
    except GameMistake as mistake:
        raise GameLost("not_finite", str(mistake)) from None
