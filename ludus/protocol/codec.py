"""Tensors and columns to bytes and back, without a Python loop over agents.

Decoding is strict: everything that the protocol forbids in one message raises `ProtocolError` with a stable code. What
needs the memory of a session (does the agent still wait, did `step_id` grow) is the collector's to check. Arrays that
decoding returns are read-only views of the message's bytes; encoding copies each array once, into the message. The
legend of dimensions is in `ludus.protocol.batches`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, assert_never

import numpy as np
import numpy.typing as npt

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import (
    ActionBatch,
    Aggregation,
    Array,
    BehaviorBatch,
    Bytes,
    DecisionBatch,
    Floats,
    Ints,
    Outcome,
    StatValue,
    TerminalBatch,
)
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, ParameterValue, Uniform
from ludus.protocol.specs import (
    DTYPES,
    FLOAT32,
    INT32,
    MAX_NAME_BYTES,
    MAX_STATS,
    UINT8,
    WIRE,
    BehaviorLayout,
    is_name,
)
from ludus.protocol.wire import varint

PROTOCOL_VERSION: Final = 1
"""The version of `ludus.v1` that this package speaks."""

_AGGREGATIONS: Final = frozenset(Aggregation)
_DOT_LIMIT: Final = 4096
"""Up to here a dot product is the quickest test for finite values, and stays on one thread."""


def array_to_tensor(array: Array) -> pb.Tensor:
    """Encode a float32, uint8 or int32 array of any shape. Any memory order or byte order is accepted."""
    wire = WIRE.get(array.dtype.name)
    if wire is None:
        raise TypeError(f"an array of {array.dtype} cannot travel; float32, uint8 and int32 can")
    return pb.Tensor(dtype=wire, shape=array.shape, data=_to_bytes(array, DTYPES[wire]))


def _to_bytes(array: Array, dtype: np.dtype[Any]) -> bytes:
    """Copy an array out, row-major, as elements of `dtype` (which only ever changes the byte order or the width)."""
    return (array if array.dtype == dtype else array.astype(dtype)).tobytes()


def decode_step(step: pb.Step, layouts: Mapping[str, BehaviorLayout]) -> list[BehaviorBatch]:
    """Check a step against the announced behaviors and return its parts. Parts without any agent are left out."""
    batches: list[BehaviorBatch] = []
    # Overflow in the dot product that tests for finite values is expected and harmless.
    with np.errstate(over="ignore", invalid="ignore"):
        for part in step.behaviors:
            name = part.behavior
            layout = layouts.get(name)
            if layout is None:
                raise ProtocolError(
                    CloseCode.UNKNOWN_BEHAVIOR,
                    f"step {step.step_id} names behavior {name!r}, which was not announced ({_listed(layouts)})",
                )
            decisions: DecisionBatch | None = None
            terminals: TerminalBatch | None = None
            if part.HasField("decisions"):
                asking = part.decisions
                agent_ids, count = _agent_ids(asking.agent_ids, layout)
                columns = _Columns(layout, "decisions", agent_ids, count)
                decisions = DecisionBatch(
                    agent_ids,
                    columns.floats(asking.rewards, "rewards"),
                    columns.observations(asking.observations),
                    columns.masks(asking.action_masks) if asking.action_masks else None,
                    columns.groups(asking.group_ids) if asking.group_ids else None,
                    columns.floats(asking.group_rewards, "group_rewards") if asking.group_rewards else None,
                )
                decisions = decisions if count else None
            if part.HasField("terminals"):
                ending = part.terminals
                agent_ids, count = _agent_ids(ending.agent_ids, layout)
                columns = _Columns(layout, "terminals", agent_ids, count)
                outcomes = ending.outcomes
                terminals = TerminalBatch(
                    agent_ids,
                    columns.floats(ending.rewards, "rewards"),
                    columns.observations(ending.observations),
                    columns.flags(ending.truncated, "truncated", highest=1).view(np.bool_),
                    columns.groups(ending.group_ids) if ending.group_ids else None,
                    columns.floats(ending.group_rewards, "group_rewards") if ending.group_rewards else None,
                    columns.flags(outcomes, "outcomes", highest=max(Outcome)) if outcomes else None,
                )
                terminals = terminals if count else None
            batches.append(BehaviorBatch(name, decisions, terminals))
    if len(batches) > 1 and len({batch.behavior for batch in batches}) < len(batches):
        raise ProtocolError(CloseCode.DUPLICATE_BEHAVIOR, f"step {step.step_id} has two entries for one behavior")
    return [batch for batch in batches if batch.decisions is not None or batch.terminals is not None]


def _agent_ids(data: bytes, layout: BehaviorLayout) -> tuple[Ints, int]:
    """Return the ids, (N,), and N."""
    count, surplus = divmod(len(data), 4)
    if surplus:
        raise ProtocolError(
            CloseCode.COLUMN_LENGTH,
            f"agent_ids of behavior {layout.spec.name!r} has {len(data)} bytes, which is no multiple of 4",
        )
    ids = np.ndarray((count,), INT32, data)
    if len(set(ids.tolist())) != count:
        values, counts = np.unique(ids, return_counts=True)
        raise ProtocolError(
            CloseCode.DUPLICATE_AGENT,
            f"behavior {layout.spec.name!r}: agent {values[counts > 1][0]} appears twice in one column",
        )
    return ids, count


class _Columns(NamedTuple):
    """Decodes the columns of one message that share an agent count."""

    layout: BehaviorLayout
    part: Literal["decisions", "terminals"]
    agent_ids: Ints
    rows: int

    def floats(self, data: bytes, name: str) -> Floats:
        if len(data) != 4 * self.rows:
            raise self._length(name, len(data), 4)
        values = np.ndarray((self.rows,), FLOAT32, data)
        if not math.isfinite(values.dot(values)) and not np.isfinite(values).all():
            raise self._error(
                CloseCode.NOT_FINITE, f"{name} holds NaN or infinity for {self._agents(~np.isfinite(values))}"
            )
        return values

    def observations(self, tensors: Sequence[pb.Tensor]) -> tuple[Array, ...]:
        layouts = self.layout.observations
        if len(tensors) != len(layouts):
            if not self.rows and not tensors:
                return ()
            raise self._error(
                CloseCode.OBSERVATION_COUNT, f"there are {len(tensors)} observations, the spec has {len(layouts)}"
            )
        columns: list[Array] = []
        for tensor, layout in zip(tensors, layouts, strict=True):
            if tensor.dtype != layout.wire:
                raise self._error(
                    CloseCode.OBSERVATION_DTYPE,
                    f"{layout.name} is of dtype {tensor.dtype}, announced was {layout.wire}",
                )
            data, shape = tensor.data, [self.rows, *layout.shape]
            if tensor.shape != shape or len(data) != self.rows * layout.row_bytes:
                raise self._error(
                    CloseCode.OBSERVATION_SHAPE,
                    f"{layout.name} has shape {tuple(tensor.shape)} in {len(data)} bytes; "
                    f"expected is {tuple(shape)} in {self.rows * layout.row_bytes} bytes",
                )
            values = np.ndarray(shape, layout.dtype, data)
            if layout.wire == pb.DTYPE_FLOAT32 and not all_finite(values):
                rows = ~np.isfinite(values.reshape(self.rows, -1)).all(axis=1)
                raise self._error(CloseCode.NOT_FINITE, f"{layout.name} holds NaN or infinity for {self._agents(rows)}")
            columns.append(values)
        return tuple(columns)

    def masks(self, data: bytes) -> Bytes:
        width = self.layout.spec.actions.mask_size
        if len(data) != self.rows * width:
            raise self._length("action_masks", len(data), width)
        masks = np.ndarray((self.rows, width), UINT8, data)
        if masks.max() > 1:
            raise self._error(CloseCode.ACTION_MASK, "action_masks holds other values than 0 and 1")
        allowed = np.maximum.reduceat(masks, self.layout.branch_starts, axis=1)  # (N, D)
        if not allowed.all():
            row, branch = np.argwhere(allowed == 0)[0]
            raise self._error(
                CloseCode.ACTION_MASK, f"every choice of branch {branch} is forbidden for agent {self.agent_ids[row]}"
            )
        return masks

    def flags(self, data: bytes, name: str, highest: int) -> Bytes:
        if len(data) != self.rows:
            raise self._length(name, len(data), 1)
        values = np.ndarray((self.rows,), UINT8, data)
        if self.rows and values.max() > highest:
            raise self._error(CloseCode.BAD_VALUE, f"{name} holds {values.max()}; the highest value is {highest}")
        return values

    def groups(self, data: bytes) -> Ints:
        if len(data) != 4 * self.rows:
            raise self._length("group_ids", len(data), 4)
        values = np.ndarray((self.rows,), INT32, data)
        if values.min() < 0:
            raise self._error(CloseCode.BAD_VALUE, f"group_ids holds {values.min()}; a group is 1 or more, 0 is none")
        return values

    def _agents(self, rows: npt.NDArray[np.bool_]) -> str:
        """Return the first few agents that `rows` (N,) selects, in words."""
        ids = self.agent_ids[rows].tolist()
        return (
            ("agent " if len(ids) == 1 else "agents ")
            + ", ".join(map(str, ids[:5]))
            + (", ..." if len(ids) > 5 else "")
        )

    def _length(self, name: str, length: int, width: int) -> ProtocolError:
        return self._error(
            CloseCode.COLUMN_LENGTH,
            f"{name} has {length} bytes; {self.rows} agents at {width} bytes each make {self.rows * width}",
        )

    def _error(self, code: CloseCode, problem: str) -> ProtocolError:
        return ProtocolError(code, f"behavior {self.layout.spec.name!r}, {self.part}: {problem}")


def all_finite(values: Array) -> bool:
    """Whether there is neither NaN nor infinity.

    A finite dot product with itself proves it, four times as fast as `isfinite` on small arrays. It can overflow on
    large finite values, so an infinite product proves nothing.
    """
    if values.size <= _DOT_LIMIT:
        flat = values.reshape(-1)
        if math.isfinite(flat.dot(flat)):
            return True
    return bool(np.isfinite(values).all())


def _listed(layouts: Mapping[str, BehaviorLayout]) -> str:
    return f"announced: {', '.join(sorted(layouts)) or 'none'}"


def encode_step(
    step_id: int, batches: Iterable[BehaviorBatch], stats: Iterable[StatValue] = (), reset_id: int = 0
) -> pb.Step:
    """Encode a step. The arrays must have the dtypes that `batches` says; shapes are the receiver's to check."""
    step = pb.Step(step_id=step_id, reset_id=reset_id)
    for batch in batches:
        part = step.behaviors.add(behavior=batch.behavior)
        if (decisions := batch.decisions) is not None:
            _encode_columns(part.decisions, decisions)
            if decisions.action_masks is not None:
                part.decisions.action_masks = _to_bytes(decisions.action_masks, UINT8)
        if (terminals := batch.terminals) is not None:
            _encode_columns(part.terminals, terminals)
            part.terminals.truncated = _to_bytes(terminals.truncated, UINT8)
            if terminals.outcomes is not None:
                part.terminals.outcomes = _to_bytes(terminals.outcomes, UINT8)
    for stat in stats:
        step.stats.add(key=stat.key, value=stat.value, aggregation=int(stat.aggregation))
    return step


def _encode_columns(message: pb.DecisionSteps | pb.TerminalSteps, batch: DecisionBatch | TerminalBatch) -> None:
    """Encode the columns that decisions and terminals both have."""
    message.agent_ids = _to_bytes(batch.agent_ids, INT32)
    message.rewards = _to_bytes(batch.rewards, FLOAT32)
    for observation in batch.observations:
        wire = WIRE[observation.dtype.name]
        message.observations.add(dtype=wire, shape=observation.shape, data=_to_bytes(observation, DTYPES[wire]))
    if batch.group_ids is not None:
        message.group_ids = _to_bytes(batch.group_ids, INT32)
    if batch.group_rewards is not None:
        message.group_rewards = _to_bytes(batch.group_rewards, FLOAT32)


def decode_stats(step: pb.Step) -> list[StatValue]:
    """Check and return the numbers that a step reports."""
    if len(step.stats) > MAX_STATS:
        problem = f"step {step.step_id} reports {len(step.stats)} stats; at most {MAX_STATS}"
        raise ProtocolError(CloseCode.BAD_STAT, problem)
    values = []
    for stat in step.stats:
        key, aggregation = stat.key, stat.aggregation or Aggregation.AVERAGE
        if not is_name(key):
            raise ProtocolError(CloseCode.BAD_STAT, f"a stat's key must have 1 to {MAX_NAME_BYTES} printable bytes")
        if not math.isfinite(stat.value):
            raise ProtocolError(CloseCode.NOT_FINITE, f"stat {key!r} is {stat.value}")
        if aggregation not in _AGGREGATIONS:
            raise ProtocolError(CloseCode.BAD_STAT, f"stat {key!r} has no aggregation {aggregation}")
        values.append(StatValue(key, stat.value, Aggregation(aggregation)))
    return values


def encode_actions(step_id: int, batches: Iterable[ActionBatch]) -> pb.Actions:
    """Encode the answer to a step."""
    message = pb.Actions(step_id=step_id)
    for batch in batches:
        part = message.behaviors.add(behavior=batch.behavior)
        if batch.agent_ids is not None:
            part.agent_ids = _to_bytes(batch.agent_ids, INT32)
        if batch.continuous.size:
            part.continuous = _to_bytes(batch.continuous, FLOAT32)
        if batch.discrete.size:
            part.discrete = _to_bytes(batch.discrete, INT32)
    return message


def encode_answer(
    step_id: int, behavior: str, agent_ids: bytes, continuous: bytes, discrete: bytes, news: bytes = b""
) -> bytes:
    """Return `ConnectResponse(actions=Actions(...))` with one behavior, serialised; empty columns are left out.

    It is the one message that a collector sends thousands of times a second. Written by hand, with a join and without
    message objects, it takes a third of the time. `news` are further fields of `Actions`, serialised.
    """
    fields: list[bytes] = []
    name = behavior.encode()
    # The fields 1 to 4 of `BehaviorActions`, length-delimited.
    for tag, column in ((b"\x0a", name), (b"\x12", agent_ids), (b"\x1a", continuous), (b"\x22", discrete)):
        if column:
            fields += (tag, varint(len(column)), column)
    part = b"".join(fields)
    actions = b"".join((b"\x08", varint(step_id), b"\x12", varint(len(part)), part, news))
    return b"".join((b"\x12", varint(len(actions)), actions))


def decode_actions(message: pb.Actions, layouts: Mapping[str, BehaviorLayout]) -> list[ActionBatch]:
    """Decode the answer to a step. Raises ProtocolError when the server's columns do not fit the behavior's actions."""
    batches = []
    for part in message.behaviors:
        name, layout = part.behavior, layouts.get(part.behavior)
        if layout is None:
            raise ProtocolError(CloseCode.UNKNOWN_BEHAVIOR, f"actions name behavior {name!r} ({_listed(layouts)})")
        size, branches = layout.spec.actions.continuous_size, len(layout.spec.actions.discrete_branches)
        ids, continuous, discrete = part.agent_ids, part.continuous, part.discrete
        count = len(continuous) // (4 * size) if size else len(discrete) // (4 * branches)
        fits = len(continuous) == 4 * count * size and len(discrete) == 4 * count * branches
        if not fits or len(ids) not in {0, 4 * count}:
            raise ProtocolError(
                CloseCode.COLUMN_LENGTH,
                f"actions of behavior {name!r}: {len(ids)} bytes of agent_ids, {len(continuous)} of continuous "
                f"and {len(discrete)} of discrete do not fit a size of {size} and {branches} branches",
            )
        batches.append(
            ActionBatch(
                name,
                np.ndarray((count,), INT32, ids) if ids else None,
                np.ndarray((count, size), FLOAT32, continuous),
                np.ndarray((count, branches), INT32, discrete),
            )
        )
    return batches


def samplers_to_messages(values: Mapping[str, ParameterValue]) -> dict[str, pb.Sampler]:
    """Return a message for each parameter that is not constant."""
    messages = {}
    for name, value in values.items():
        match value:
            case Constant():
                continue
            case Uniform():
                uniform = pb.UniformDistribution(min_value=value.minimum, max_value=value.maximum)
                messages[name] = pb.Sampler(seed=value.seed, uniform=uniform)
            case Gaussian():
                gaussian = pb.GaussianDistribution(mean=value.mean, st_dev=value.st_dev)
                messages[name] = pb.Sampler(seed=value.seed, gaussian=gaussian)
            case MultiRangeUniform():
                low, high = zip(*value.intervals, strict=True)
                several = pb.MultiRangeUniformDistribution(min_values=low, max_values=high)
                messages[name] = pb.Sampler(seed=value.seed, multi_range_uniform=several)
            case _:
                assert_never(value)
    return messages


def samplers_from_messages(messages: Mapping[str, pb.Sampler]) -> dict[str, ParameterValue]:
    """Read the samplers of a message. Distributions that are not known here are left out: their value stays."""
    values: dict[str, ParameterValue] = {}
    for name, message in messages.items():
        match message.WhichOneof("distribution"):
            case "uniform":
                values[name] = Uniform(message.uniform.min_value, message.uniform.max_value, message.seed)
            case "gaussian":
                values[name] = Gaussian(message.gaussian.mean, message.gaussian.st_dev, message.seed)
            case "multi_range_uniform":
                several = message.multi_range_uniform
                if intervals := tuple(zip(several.min_values, several.max_values, strict=False)):
                    values[name] = MultiRangeUniform(intervals, message.seed)
    return values
