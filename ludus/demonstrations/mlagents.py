"""ML-Agents' recordings, `.demo`: bytes to columns and back.

Layout: a varint and DemonstrationMetaProto within the first 33 bytes; from byte 33 a varint and BrainParametersProto;
then `number_steps` times a varint and AgentInfoActionPairProto. A copy of the meta message without its length follows
in files that Unity closed, and is not looked at. A recording that was never closed says `number_steps` 0: it is read to
its end, and half a record there is dropped.

**Pairing.** Record t holds the state s_t, but the action a_(t-1) that led there, and the reward for it. So by default
row t takes its action and its reward from record t + 1, and an episode's terminal record gives the final observation
and no row. `legacy_pairing` reads as ML-Agents 1.1.0 itself does: the action of record t stands beside s_t, one step
late, and the terminal record is the first row of the piece that follows. Use it to reproduce its results only.

Deviations from ML-Agents, on purpose:
 a. The correct pairing is the default (see above); every row is kept, the last one of the file included.
 b. Continuous actions outside [-1, 1], which no policy can produce, are clipped to it.
 c. Group rewards, group ids and action masks are kept.
 d. Images stay uint8 where they were PNG (see `ludus.demonstrations.pictures`); those of packages before 3.0, whose
    channels come last, are turned.
 e. Each record's shapes are compared with the first one's; values that are not finite are refused everywhere.
"""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError, Message

from ludus.demonstrations.demonstration import Demonstration, DemonstrationError, stack_masks
from ludus.mlagents.pictures import PictureError, encode_pictures
from ludus.mlagents.specs import CHANNELS_FIRST, ObservationError, Sensor, action_spec, observation_values, sensor
from ludus.protocol.batches import Array, Bytes, Floats, Ints
from ludus.protocol.codes import ProtocolError
from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.mlagents import demonstration_pb2 as pb
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec
from ludus.protocol.specs import check_spec
from ludus.protocol.wire import read_varint, varint

META_BYTES: Final = 33
"""The area of the meta message, its length included: the brain parameters begin behind it."""
_API_VERSIONS: Final = (0, 1)
MAX_RECORD_BYTES: Final = 1 << 25
"""Maximum size of one message in the file: a hostile one takes fifty times as much memory."""
_ROW_BYTES: Final = 600
"""Bytes of memory of each record before it is part of a column: its lists, its numbers, the arrays of its actions."""
_ARRAY_BYTES: Final = 150
"""The same for each of its observations."""
_VARINT_BYTES: Final = 5
"""The longest varint of a length below 2 GiB, protobuf's own limit."""


_PROPERTIES: Final = {
    2: (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE),
    3: CHANNELS_FIRST,
}
"""ML-Agents' dimension properties of observations whose spec has none, by their number of dimensions."""

NAME_LENGTH: Final = 16
"""Maximum number of characters of a recording's name, so that the meta message fits its area."""


def decode(content: bytes, *, legacy_pairing: bool, max_bytes: int) -> Demonstration:
    """Return the demonstration in a file. Raises `DemonstrationError`, without a path."""
    reader = _Reader(content)
    try:
        meta = reader.message(pb.DemonstrationMetaProto(), "the meta message")
    except _Incomplete as error:
        raise DemonstrationError(
            f"it is no recording, neither Ludus' nor ML-Agents', or is cut short ({error.problem}); copy it again",
            position=error.position,
        ) from None
    if meta.api_version not in _API_VERSIONS:
        raise DemonstrationError(
            f"it is no ML-Agents recording, or has the unknown version {meta.api_version} (0 and 1 are known)",
            position=0,
        )
    if reader.at > META_BYTES:
        raise DemonstrationError(f"its meta message is longer than {META_BYTES} bytes: it is no ML-Agents recording")
    reader.at = META_BYTES
    brain = reader.message(agent.BrainParametersProto(), "the brain parameters")
    records = _Records(brain, max_bytes)
    if meta.number_steps < 0:
        raise DemonstrationError(f"its meta message counts {meta.number_steps} records", position=0)
    # A recording that was never closed counts 0 records: it is read to its end.
    for index in range(meta.number_steps) if meta.number_steps else itertools.count():
        if not meta.number_steps and reader.is_at_end:
            break
        try:
            record = reader.message(pb.AgentInfoActionPairProto(), f"record {index}")
        except _Incomplete as error:
            if not meta.number_steps:
                break  # half a record at the end
            raise DemonstrationError(
                f"it is cut short: its head counts {meta.number_steps} records, {index} are whole "
                f"({error.problem}); copy it again",
                position=error.position,
            ) from None
        records.add(record, reader.began)
    return records.paired(legacy=legacy_pairing)


class _Incomplete(DemonstrationError):
    """The file ends within a message."""


class _Reader:
    """Takes messages with their lengths off the bytes of a file."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0
        self.began = 0
        """Offset of the last message's length."""

    def message(self, empty: Any, what: str) -> Any:
        """Read the next message. A length beyond the end of the file is an error."""
        self.began = min(self.at, len(self.content))
        head = self.content[self.at : self.at + _VARINT_BYTES]
        try:
            length, size = read_varint(head, 0)
        except IndexError:
            if len(head) < _VARINT_BYTES:
                raise _Incomplete(f"{what} is missing: the file has ended", position=self.began) from None
            raise DemonstrationError(
                f"the length of {what} is no number: the file is damaged, or is no ML-Agents recording",
                position=self.began,
            ) from None
        self.at += size
        if self.at + length > len(self.content):
            missing = f"{what} should have {length:,} bytes, {len(self.content) - self.at:,} are left"
            raise _Incomplete(missing, position=self.began)
        if length > MAX_RECORD_BYTES:
            raise DemonstrationError(
                f"{what} has {length:,} bytes; no more than {MAX_RECORD_BYTES:,} are read", position=self.began
            )
        try:
            empty.ParseFromString(self.content[self.at : self.at + length])
        except DecodeError:
            raise DemonstrationError(
                f"{what} cannot be decoded: the file is damaged, or is no ML-Agents recording", position=self.began
            ) from None
        self.at += length
        return empty

    @property
    def is_at_end(self) -> bool:
        return self.at >= len(self.content)


@dataclass
class _Records:
    """Records as columns in the making. Legend: R records."""

    brain: agent.BrainParametersProto
    max_bytes: int
    spec: BehaviorSpec | None = None
    """Known with the first record."""
    sensors: tuple[Sensor, ...] = ()
    observations: list[list[Array]] = field(default_factory=list)
    continuous: list[Floats] = field(default_factory=list)
    discrete: list[Ints] = field(default_factory=list)
    masks: list[Bytes | None] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    group_rewards: list[float] = field(default_factory=list)
    group_ids: list[int] = field(default_factory=list)
    done: list[bool] = field(default_factory=list)
    limited: list[bool] = field(default_factory=list)

    def add(self, record: pb.AgentInfoActionPairProto, position: int) -> None:
        """Append a record that begins at `position` in the file."""
        index = len(self.rewards)
        info = record.agent_info
        try:
            if self.spec is None:
                self._begin(info)
            assert self.spec is not None
            self.observations.append(self._observations(info.observations))
            continuous, discrete = _actions(record.action_info, self.spec.actions)
            self.continuous.append(continuous)
            self.discrete.append(discrete)
            # True means forbidden. A mask of a wrong length allows everything, as in ML-Agents.
            forbidden = np.array(info.action_mask, np.bool_)
            is_used = len(forbidden) == self.spec.actions.mask_size and forbidden.any()
            self.masks.append((~forbidden).astype(np.uint8) if is_used else None)
            self.rewards.append(_finite(info.reward, "reward"))
            self.group_rewards.append(_finite(info.group_reward, "group reward"))
        except DemonstrationError as error:
            raise DemonstrationError(f"record {index}: {error.problem}", position=position) from None
        self.group_ids.append(info.group_id)
        self.done.append(info.done)
        self.limited.append(info.max_step_reached)

    def paired(self, *, legacy: bool) -> Demonstration:
        """Return rows and pieces."""
        done = np.array(self.done, np.bool_)
        count = len(done)
        if count < 2 or self.spec is None:
            raise DemonstrationError(
                f"it holds {count} records, and a step needs two (before and after); record at least one step"
            )
        # A row is a record that another one of its episode follows. Legacy: any record but the last one.
        rows = np.arange(count - 1) if legacy else np.flatnonzero(~done[:-1])
        if not len(rows):
            raise DemonstrationError("all its episodes end before their first step; record at least one step")
        following = rows + 1
        # The action of row t stands in record t + 1; ML-Agents itself pairs it with record t.
        actions = rows if legacy else following
        # A row ends its piece if the next record ends the episode, or if it is the last row of the file.
        last = done[following].copy()
        last[-1] = True
        begins = np.concatenate([[True], last[:-1]])  # the row after a last one begins a piece
        limited = np.array(self.limited, np.bool_)[following]
        group_rewards = np.array(self.group_rewards, np.float32)[following]
        group_ids = np.array(self.group_ids, np.int32)[rows]
        columns = [np.stack(column) for column in zip(*self.observations, strict=True)]
        if any(mask is not None for mask in self.masks):
            self._take(count * self.spec.actions.mask_size)
        masks = stack_masks(self.masks, self.spec)
        return Demonstration(
            spec=self.spec,
            observations=tuple(column[rows] for column in columns),
            continuous=np.stack(self.continuous)[actions],
            discrete=np.stack(self.discrete)[actions],
            rewards=np.array(self.rewards, np.float32)[following],
            terminated=done[following] & ~limited,
            truncated=done[following] & limited,
            starts=np.flatnonzero(begins),
            final_observations=tuple(column[following[last]] for column in columns),
            from_start=np.ones(int(begins.sum()), np.bool_),
            group_rewards=group_rewards if group_rewards.any() else None,
            group_ids=group_ids if group_ids.any() else None,
            action_masks=None if masks is None else masks[rows],
        )

    def _take(self, size: int) -> None:
        """Count bytes before they are asked for: a few in the file can stand for many."""
        self.max_bytes -= size
        if self.max_bytes < 0:
            raise DemonstrationError("the file decodes to more bytes than are allowed here; split it")

    def _begin(self, info: agent.AgentInfoProto) -> None:
        """Derive the spec from the brain parameters and the first record."""
        sensors = []
        for observation in info.observations:
            try:
                sensors.append(sensor(observation))
            except ObservationError as error:
                raise DemonstrationError(f"observation {observation.name!r}: {error}") from None
        self.sensors = tuple(sensors)
        name = self.brain.brain_name or "demonstration"
        spec = BehaviorSpec(name, tuple(part.spec for part in sensors), action_spec(self.brain))
        try:
            check_spec(spec)
        except ProtocolError as error:
            raise DemonstrationError(str(error)) from None
        self.spec = spec

    def _observations(self, observations: Sequence[agent.ObservationProto]) -> list[Array]:
        assert self.spec is not None
        if len(observations) < len(self.spec.observations):
            raise DemonstrationError(
                f"it has {len(observations)} observations, the first record has {len(self.spec.observations)}"
            )
        actions = self.spec.actions
        self._take(_ROW_BYTES + 4 * (actions.continuous_size + len(actions.discrete_branches)))
        self._take(sum(_ARRAY_BYTES + spec.size * np.dtype(spec.dtype).itemsize for spec in self.spec.observations))
        arrays = []
        # As in ML-Agents, surplus observations are not read.
        for index, (observation, expected) in enumerate(zip(observations, self.sensors, strict=False)):
            try:
                values = observation_values(observation, expected)
            except ObservationError as error:
                raise DemonstrationError(f"observation {index} ({expected.spec.name!r}): {error}") from None
            if not np.isfinite(values).all():
                raise DemonstrationError(
                    f"observation {index} ({expected.spec.name!r}): it is not finite; record the episode again, "
                    "or repair the sensor"
                )
            arrays.append(values)
        return arrays


def _actions(action: agent.AgentActionProto, spec: ActionSpec) -> tuple[Floats, Ints]:
    """Return one record's actions, (C,) and (D,); from the deprecated field if the new ones are empty."""
    continuous = np.array(action.continuous_actions, np.float32)
    discrete = np.array(action.discrete_actions, np.int32)
    if len(continuous) or len(discrete):  # as in ML-Agents, of a kind that the behavior does not have nothing is read
        continuous = continuous if spec.continuous_size else continuous[:0]
        discrete = discrete if spec.discrete_branches else discrete[:0]
    else:
        old = np.array(action.vector_actions_deprecated, np.float32)
        if not np.isfinite(old).all():
            raise DemonstrationError("its action is not finite")
        continuous, discrete = (old, discrete) if spec.continuous_size else (continuous, old.astype(np.int32))
    sizes = (spec.continuous_size, len(spec.discrete_branches))
    if not len(continuous) and not len(discrete):
        continuous, discrete = np.zeros(sizes[0], np.float32), np.zeros(sizes[1], np.int32)
    if (len(continuous), len(discrete)) != sizes:
        raise DemonstrationError(
            f"it has {len(continuous)} continuous and {len(discrete)} discrete actions, "
            f"the brain parameters say {sizes[0]} and {sizes[1]}"
        )
    if not np.isfinite(continuous).all():
        raise DemonstrationError("its action is not finite")
    for branch, (choice, choices) in enumerate(zip(discrete.tolist(), spec.discrete_branches, strict=True)):
        if not 0 <= choice < choices:
            raise DemonstrationError(f"branch {branch} has choice {choice}; it has the choices 0 to {choices - 1}")
    return continuous.clip(-1.0, 1.0), discrete


def _finite(value: float, what: str) -> float:
    if not math.isfinite(value):
        raise DemonstrationError(f"its {what} is {value}")
    return value


def encode(demonstration: Demonstration) -> bytes:
    """Render a file that ML-Agents and Unity read, in their pairing: each record carries the action before it.

    The format cannot hold everything: a piece that is neither terminated nor truncated is written as truncated, and one
    that did not begin with its episode as if it had. Observations of uint8 are written as PNG, which needs pillow.
    """
    spec = demonstration.spec
    episodes = demonstration.pieces
    steps = demonstration.steps + episodes
    head = pb.DemonstrationMetaProto(
        api_version=1,
        demonstration_name=re.sub(r"[^a-zA-Z0-9 -]", "", spec.behavior)[:NAME_LENGTH],
        number_steps=steps,
        number_episodes=episodes + 1,  # as Unity counts
        mean_reward=float(demonstration.rewards.sum(dtype=np.float64) / (episodes + 1)),
    )
    brain = agent.BrainParametersProto(
        brain_name=spec.name if "?" in spec.name else f"{spec.name}?team=0",
        action_spec=agent.ActionSpecProto(
            num_continuous_actions=spec.actions.continuous_size,
            num_discrete_actions=len(spec.actions.discrete_branches),
            discrete_branch_sizes=spec.actions.discrete_branches,
        ),
    )
    parts = [_delimited(head).ljust(META_BYTES, b"\0"), _delimited(brain)]
    parts += [_delimited(record) for record in _records(demonstration)]
    return b"".join(parts)


def _records(demonstration: Demonstration) -> Iterator[pb.AgentInfoActionPairProto]:
    """Yield a record for every row, and one for the end of every piece."""
    groups = demonstration.group_rewards
    bounds = zip(demonstration.starts.tolist(), demonstration.ends.tolist(), strict=True)
    for piece, (start, end) in enumerate(bounds):
        for row in range(start, end + 2):
            final = row > end
            values = demonstration.final_observations if final else demonstration.observations
            info = agent.AgentInfoProto(
                observations=[
                    _observation_message(column[piece if final else row], spec)
                    for column, spec in zip(values, demonstration.spec.observations, strict=True)
                ],
                done=final,
                max_step_reached=final and not demonstration.terminated[end],
                group_id=0 if demonstration.group_ids is None else int(demonstration.group_ids[min(row, end)]),
            )
            if demonstration.action_masks is not None and not final:
                info.action_mask.extend((demonstration.action_masks[row] == 0).tolist())
            action = agent.AgentActionProto(
                continuous_actions=[0.0] * demonstration.continuous.shape[1],
                discrete_actions=[0] * demonstration.discrete.shape[1],
            )
            if row > start:
                info.reward = demonstration.rewards[row - 1]
                info.group_reward = 0.0 if groups is None else groups[row - 1]
                action.continuous_actions[:] = demonstration.continuous[row - 1].tolist()
                action.discrete_actions[:] = demonstration.discrete[row - 1].tolist()
            yield pb.AgentInfoActionPairProto(agent_info=info, action_info=action)


def _observation_message(values: Array, spec: ObservationSpec) -> agent.ObservationProto:
    no_meaning = (DimensionProperty.NONE,) * len(spec.shape)
    properties = spec.dimension_properties or _PROPERTIES.get(len(spec.shape), no_meaning)
    message = agent.ObservationProto(
        shape=spec.shape,
        dimension_properties=[int(value) for value in properties],
        observation_type=int(spec.type) - 1,  # type: ignore[arg-type]  # the stub wants its own enum
        name=spec.name,
    )
    if spec.dtype == "uint8" and len(spec.shape) == 3:
        message.compression_type = agent.PNG
        try:
            message.compressed_data = encode_pictures(values)
        except PictureError as error:
            raise DemonstrationError(str(error)) from None
    else:
        message.float_data.data.extend(values.astype(np.float32).reshape(-1).tolist())
    return message


def _delimited(message: Message) -> bytes:
    content = message.SerializeToString()
    return varint(len(content)) + content
