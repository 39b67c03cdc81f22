"""From a player's messages to columns: little work per agent, none per number.

ML-Agents sends one message per agent, with the numbers of an observation inside it. protobuf takes it apart down to the
observations, which stay bytes (`shallow.proto`). Those of one sensor differ only in their numbers: shape, name and the
rest are the same bytes in front and behind. So the blocks of numbers between are cut out, and joined they are the
column. Messages of another form (PNG, another order of fields) are decoded one by one.

docs/unity-protocol.md compares every check here with ML-Agents' own reader. A message that ML-Agents trains with in
silence, and that is surely a mistake of the game, is taken and reported.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from ludus.mlagents.specs import ObservationError, Sensor, action_spec, observation_values, sensor
from ludus.protocol.batches import Array, BehaviorBatch, Bytes, DecisionBatch, Floats, Ints, TerminalBatch
from ludus.protocol.codec import all_finite
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.mlagents import shallow_pb2 as shallow
from ludus.protocol.spec import BehaviorSpec
from ludus.protocol.specs import check_spec
from ludus.protocol.wire import BYTES, fields

Tell = Callable[[str, str], None]
"""Takes the code and the sentence of a problem that does not end the session; it reports each code once."""

_FLOAT_DATA, _DATA = (4, BYTES), (1, BYTES)
"""Number and wire type of `ObservationProto.float_data` and of `FloatData.data`."""


class _Template(NamedTuple):
    """The position of the numbers in a sensor's messages, and the bytes around them."""

    size: int
    """Bytes of a message."""
    start: int
    stop: int
    """The block of numbers."""
    head: bytes
    tail: bytes


@dataclass(slots=True)
class _Column:
    """Decodes one sensor's messages."""

    index: int
    sensor: Sensor
    template: _Template | None = None

    @property
    def name(self) -> str:
        """The observation, for people."""
        given = self.sensor.spec.name
        return f"observation {self.index}" + (f" ({given})" if given else "")

    def values(self, rows: Sequence[bytes]) -> Array:
        """Return (N, *shape). Raises ObservationError."""
        if self.sensor.spec.dtype == "float32":
            found = self._block(rows)
            if found is not None:
                return found
        try:
            messages = [agent.ObservationProto.FromString(row) for row in rows]
        except DecodeError:
            raise ObservationError("it is no ObservationProto") from None
        return np.stack([observation_values(message, self.sensor) for message in messages])

    def _block(self, rows: Sequence[bytes]) -> Array | None:
        """Cut the numbers out of rows that look like the template; None if one doesn't."""
        template = self.template
        if template is None:
            template = self.template = _template(rows[0], self.sensor)
            if template is None:
                return None
        size, start, stop, head, tail = template
        blocks = [row[start:stop] for row in rows if len(row) == size and row.startswith(head) and row.endswith(tail)]
        if len(blocks) < len(rows):
            return None
        values: Array = np.frombuffer(b"".join(blocks), "<f4").reshape(len(rows), *self.sensor.shape)
        return values.transpose(0, 3, 1, 2) if self.sensor.turned else values


@dataclass(slots=True)
class InfoReader:
    """Decodes the agents of one behavior. Made from its announcement and its first agent."""

    spec: BehaviorSpec
    _columns: tuple[_Column, ...]
    _tell: Tell
    rows: list[int] | None = None
    """For each agent that asked in the newest message, as often as it asked, its row among the decisions. None: each
    asked once, in the order of the rows.
    """
    _branch_starts: npt.NDArray[np.intp] = field(init=False)

    def __post_init__(self) -> None:
        starts = np.cumsum((0, *self.spec.actions.discrete_branches[:-1]), dtype=np.intp)
        self._branch_starts = starts

    @classmethod
    def of(cls, brain: agent.BrainParametersProto, first: shallow.Info, tell: Tell) -> "InfoReader":
        """Derive spec and layout. Raises ProtocolError(bad_spec)."""
        name = brain.brain_name
        sensors = []
        for index, row in enumerate(first.observations):
            try:
                sensors.append(sensor(agent.ObservationProto.FromString(row)))
            except (DecodeError, ObservationError) as error:
                problem = str(error) if isinstance(error, ObservationError) else "it is no ObservationProto"
                raise ProtocolError(CloseCode.BAD_SPEC, f"behavior {name!r}: observation {index}: {problem}") from None
        spec = BehaviorSpec(name, tuple(each.spec for each in sensors), action_spec(brain))
        check_spec(spec)
        return cls(spec, tuple(_Column(index, each) for index, each in enumerate(sensors)), tell)

    def read(self, infos: Sequence[shallow.Info]) -> BehaviorBatch:
        """Return the agents that ended and those that ask, each in their order. Raises ProtocolError."""
        ended = [info for info in infos if info.done]
        asking = infos if not ended else [info for info in infos if not info.done]
        # Overflow in the dot product that tests for finite values is expected and harmless.
        with np.errstate(over="ignore", invalid="ignore"):
            terminals = self._terminals(ended) if ended else None
            decisions = self._decisions(asking) if asking else None
        return BehaviorBatch(self.spec.name, decisions, terminals)

    def _decisions(self, infos: Sequence[shallow.Info]) -> DecisionBatch:
        newest = self._newest(infos, "asked for actions")
        self.rows = None
        if len(newest) < len(infos):
            place = {agent_id: row for row, agent_id in enumerate(newest)}
            self.rows = [place[info.id] for info in infos]
        infos, ids = [*newest.values()], np.array([*newest], np.int32)
        groups, group_rewards = self._groups(infos, ids)
        return DecisionBatch(
            ids, self._rewards(infos, ids), self._observations(infos, ids), self._masks(infos), groups, group_rewards
        )

    def _terminals(self, infos: Sequence[shallow.Info]) -> TerminalBatch:
        newest = self._newest(infos, "ended, by EndEpisode for instance,")
        infos, ids = [*newest.values()], np.array([*newest], np.int32)
        groups, group_rewards = self._groups(infos, ids)
        truncated = np.array([info.max_step_reached for info in infos], np.bool_)
        return TerminalBatch(
            ids, self._rewards(infos, ids), self._observations(infos, ids), truncated, groups, group_rewards
        )

    def _newest(self, infos: Sequence[shallow.Info], did: str) -> dict[int, shallow.Info]:
        """Return the agents by their ids. Of one that stands in a message several times the last entry counts."""
        newest = {info.id: info for info in infos}
        if len(newest) < len(infos):
            counts = Counter(info.id for info in infos)
            twice = counts.most_common(1)[0][0]
            self._warn(
                CloseCode.DUPLICATE_AGENT,
                f"agent {twice} {did} {counts[twice]} times in one step; as with ML-Agents only the last time counts, "
                "with its reward alone",
            )
        return newest

    def _rewards(self, infos: Sequence[shallow.Info], ids: Ints) -> Floats:
        return self._finite(np.array([info.reward for info in infos], np.float32), "rewards", ids)

    def _groups(self, infos: Sequence[shallow.Info], ids: Ints) -> tuple[Ints | None, Floats | None]:
        """Return group ids, and rewards of groups: an agent may have one from a group that it has left."""
        listed, earned = [info.group_id for info in infos], [info.group_reward for info in infos]
        if not any(listed) and not any(earned):
            return None, None
        groups = np.maximum(np.array(listed, np.int32), 0)  # as in ML-Agents, a negative one is none
        return groups, self._finite(np.array(earned, np.float32), "group rewards", ids)

    def _finite(self, values: Floats, what: str, ids: Ints) -> Floats:
        if not all_finite(values):
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise self._error(CloseCode.NOT_FINITE, f"{what}: that of agent {ids[row]} is {values[row]}")
        return values

    def _observations(self, infos: Sequence[shallow.Info], ids: Ints) -> tuple[Array, ...]:
        rows = [info.observations for info in infos]
        expected = len(self._columns)
        for count, agent_id in zip(map(len, rows), ids, strict=True):
            if count != expected:
                problem = (
                    f"agent {agent_id} has {count} observations, the first one had {expected}; all agents of a "
                    "behavior need the same sensors"
                )
                if count < expected:
                    raise self._error(CloseCode.OBSERVATION_COUNT, problem)
                self._warn(CloseCode.OBSERVATION_COUNT, f"{problem}. As with ML-Agents the surplus is not read")
        return tuple([self._observation(column, [row[column.index] for row in rows], ids) for column in self._columns])

    def _observation(self, column: _Column, rows: Sequence[bytes], ids: Ints) -> Array:
        try:
            values = column.values(rows)
        except ObservationError as error:
            raise self._error(CloseCode.OBSERVATION_SHAPE, f"{column.name}: {error}") from None
        if values.dtype == np.float32 and not all_finite(values):
            row = int(np.flatnonzero(~np.isfinite(values.reshape(len(rows), -1)).all(axis=1))[0])
            raise self._error(CloseCode.NOT_FINITE, f"{column.name} of agent {ids[row]} holds NaN or infinity")
        return values

    def _masks(self, infos: Sequence[shallow.Info]) -> Bytes | None:
        """Turn masks around: 1 = allowed here.

        As in ML-Agents, a mask of a wrong length allows everything, and a branch that is forbidden whole is drawn
        from evenly.
        """
        actions = self.spec.actions
        width = actions.mask_size
        if not width:
            return None
        rows = [info.action_mask for info in infos]
        if not any(rows):
            return None
        nothing = bytes(width)
        joined = b"".join([row if len(row) == width else nothing for row in rows])
        masks: Bytes = (np.frombuffer(joined, np.uint8).reshape(len(rows), width) == 0).view(np.uint8)
        open_branches = np.maximum.reduceat(masks, self._branch_starts, axis=1)  # (N, D)
        if not open_branches.all():
            masks = masks | (np.repeat(open_branches, actions.discrete_branches, axis=1) == 0)
        return masks

    def _warn(self, code: CloseCode, problem: str) -> None:
        self._tell(code.value, f"behavior {self.spec.name!r}: {problem}")

    def _error(self, code: CloseCode, problem: str) -> ProtocolError:
        return ProtocolError(code, f"behavior {self.spec.name!r}: {problem}")


def _template(row: bytes, sensor: Sensor) -> _Template | None:
    """Find the numbers in a message of a sensor; None where they don't stand in one block."""
    shape = list(sensor.shape)
    try:
        message = agent.ObservationProto.FromString(row)
    except DecodeError:
        return None
    if list(message.shape) != shape:
        return None
    if not math.prod(shape) and not message.float_data.data:
        return _Template(len(row), len(row), len(row), row, b"")
    try:
        blocks = [part for number, kind, *part in fields(row, 0, len(row)) if (number, kind) == _FLOAT_DATA]
        inner = [each for block in blocks for each in fields(row, *block)]
    except ValueError:
        return None  # groups: no sender uses them
    if len(blocks) != 1 or len(inner) != 1 or inner[0][:2] != _DATA:
        return None
    start, stop = inner[0][2:]
    if stop - start != 4 * math.prod(shape):
        return None
    return _Template(len(row), start, stop, row[:start], row[stop:])
