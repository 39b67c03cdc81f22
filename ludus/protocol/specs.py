"""Behavior specs: their limits, their messages, and the sizes of a step's columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

MAX_BEHAVIORS: Final = 1_000
"""Of one simulator; each team of a behavior counts."""
MAX_OBSERVATIONS: Final = 1_000
MAX_DIMENSIONS: Final = 4
MAX_ELEMENTS: Final = 1 << 24
"""Elements of one observation of one agent."""
MAX_CONTINUOUS: Final = 10_000
MAX_BRANCHES: Final = 1_000
MAX_CHOICES: Final = 1_000_000
"""Choices of all branches together."""
MAX_NAME_BYTES: Final = 200
MAX_STATS: Final = 1_000
MAX_GAME_LAYOUT: Final = 1 << 14

FLOAT32: Final = np.dtype("<f4")
UINT8: Final = np.dtype("u1")
INT32: Final = np.dtype("<i4")

DTYPES: Final[Mapping[int, np.dtype[Any]]] = {pb.DTYPE_FLOAT32: FLOAT32, pb.DTYPE_UINT8: UINT8, pb.DTYPE_INT32: INT32}
WIRE: Final[Mapping[str, pb.DType]] = {
    "float32": pb.DTYPE_FLOAT32,
    "uint8": pb.DTYPE_UINT8,
    "int32": pb.DTYPE_INT32,
}
_OBSERVATION_DTYPES: Final[Mapping[int, Literal["float32", "uint8"]]] = {
    pb.DTYPE_FLOAT32: "float32",
    pb.DTYPE_UINT8: "uint8",
}


@dataclass(frozen=True, slots=True)
class ObservationLayout:
    """The form of one observation on the wire."""

    shape: list[int]
    wire: pb.DType
    dtype: np.dtype[Any]
    row_bytes: int
    name: str
    variable: bool
    """Whether the first dimension counts entities, of which there may be fewer: zeros fill up."""


@dataclass(frozen=True, slots=True)
class BehaviorLayout:
    """A spec with everything worked out that encoding and decoding need. Build once per behavior and session."""

    spec: BehaviorSpec
    observations: tuple[ObservationLayout, ...] = field(init=False)
    branch_starts: npt.NDArray[np.intp] = field(init=False)
    """(D,): the first mask column of each branch."""

    def __post_init__(self) -> None:
        layouts = tuple(
            ObservationLayout(
                shape=list(observation.shape),
                wire=WIRE[observation.dtype],
                dtype=DTYPES[WIRE[observation.dtype]],
                row_bytes=observation.size * DTYPES[WIRE[observation.dtype]].itemsize,
                name=f"observation {index}" + (f" ({observation.name})" if observation.name else ""),
                variable=DimensionProperty.VARIABLE_SIZE in observation.dimension_properties[:1],
            )
            for index, observation in enumerate(self.spec.observations)
        )
        starts = np.cumsum((0, *self.spec.actions.discrete_branches[:-1]), dtype=np.intp)
        object.__setattr__(self, "observations", layouts)
        object.__setattr__(self, "branch_starts", starts)


def spec_to_message(spec: BehaviorSpec) -> pb.BehaviorSpec:
    """Encode a spec. Raises ProtocolError(bad_spec) for one that the server would refuse."""
    check_spec(spec)
    return pb.BehaviorSpec(
        name=spec.name,
        observations=[
            pb.ObservationSpec(
                name=observation.name,
                shape=observation.shape,
                dtype=WIRE[observation.dtype],
                type=int(observation.type),  # type: ignore[arg-type]  # the stub wants its own enum
                dimension_properties=[int(p) for p in observation.dimension_properties],  # type: ignore[misc]  # likewise
            )
            for observation in spec.observations
        ],
        actions=pb.ActionSpec(
            continuous_size=spec.actions.continuous_size, discrete_branches=spec.actions.discrete_branches
        ),
        game_layout=spec.game_layout,
    )


def spec_from_message(message: pb.BehaviorSpec) -> BehaviorSpec:
    """Decode and check a spec. Raises ProtocolError(bad_spec)."""
    observations = []
    for sent in message.observations:
        dtype = _OBSERVATION_DTYPES.get(sent.dtype)
        if dtype is None:
            problem = f"observation {sent.name!r} has dtype {sent.dtype}; it can be FLOAT32 or UINT8"
            raise _bad_spec(message.name, problem)
        try:
            kind = ObservationType(sent.type or ObservationType.DEFAULT)
            properties = tuple(DimensionProperty(value) for value in sent.dimension_properties)
        except ValueError as error:
            raise _bad_spec(message.name, f"observation {sent.name!r}: {error}") from None
        observations.append(ObservationSpec(tuple(sent.shape), sent.name, dtype, kind, properties))
    actions = ActionSpec(message.actions.continuous_size, tuple(message.actions.discrete_branches))
    spec = BehaviorSpec(message.name, tuple(observations), actions, message.game_layout)
    check_spec(spec)
    return spec


def check_spec(spec: BehaviorSpec) -> None:
    """Raise ProtocolError(bad_spec) unless the spec keeps every limit of the protocol."""
    if not is_name(spec.name) or not spec.behavior:
        raise _bad_spec(spec.name[:40], f"the name must have 1 to {MAX_NAME_BYTES} printable bytes")
    if not 1 <= len(spec.observations) <= MAX_OBSERVATIONS:
        raise _bad_spec(
            spec.name, f"it has {len(spec.observations)} observations; 1 to {MAX_OBSERVATIONS} are possible"
        )
    for index, observation in enumerate(spec.observations):
        what, rank = f"observation {index}", len(observation.shape)
        # Unity's agents that see by cameras alone may have a vector, or a list of entities, of no numbers.
        least = (*(1,) * (rank - 1), 0 if rank in {1, 2} else 1)
        if not 1 <= rank <= MAX_DIMENSIONS or any(map(int.__lt__, observation.shape, least)):
            raise _bad_spec(
                spec.name,
                f"{what} has shape {observation.shape}; 1 to {MAX_DIMENSIONS} dimensions of 1 or more, "
                "where the last one of a vector or of a list may be 0",
            )
        if observation.size > MAX_ELEMENTS:
            raise _bad_spec(spec.name, f"{what} has {observation.size} elements; at most {MAX_ELEMENTS} are possible")
        if len(observation.name.encode()) > MAX_NAME_BYTES:
            raise _bad_spec(spec.name, f"{what} has a name of more than {MAX_NAME_BYTES} bytes")
        if len(observation.dimension_properties) not in {0, rank}:
            raise _bad_spec(spec.name, f"{what} needs as many dimension_properties as dimensions, or none")
    actions = spec.actions
    if not 0 <= actions.continuous_size <= MAX_CONTINUOUS:
        raise _bad_spec(
            spec.name, f"continuous_size is {actions.continuous_size}; at most {MAX_CONTINUOUS} is possible"
        )
    if len(actions.discrete_branches) > MAX_BRANCHES:
        raise _bad_spec(
            spec.name, f"it has {len(actions.discrete_branches)} branches; at most {MAX_BRANCHES} are possible"
        )
    if any(size < 1 for size in actions.discrete_branches) or actions.mask_size > MAX_CHOICES:
        raise _bad_spec(spec.name, f"each branch needs 1 choice or more, all together at most {MAX_CHOICES}")
    if not actions.continuous_size and not actions.discrete_branches:
        raise _bad_spec(spec.name, "it has no actions; name a continuous_size or discrete_branches")
    if len(spec.game_layout) > MAX_GAME_LAYOUT:
        problem = f"game_layout has {len(spec.game_layout)} characters; at most {MAX_GAME_LAYOUT} are possible"
        raise _bad_spec(spec.name, problem)


def is_name(text: str) -> bool:
    """Whether `text` can name a behavior or a stat: 1 to 200 bytes, printable."""
    return text.isprintable() and 1 <= len(text.encode()) <= MAX_NAME_BYTES


def _bad_spec(behavior: str, problem: str) -> ProtocolError:
    return ProtocolError(CloseCode.BAD_SPEC, f"behavior {behavior!r}: {problem}")
