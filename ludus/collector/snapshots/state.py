"""Snapshots of sessions in a checkpoint, from which simulators that support it resume.

While a checkpoint is taken in lockstep the runners answer no agent, so every simulator comes to rest, and those
that said that they resume are asked for their position. Then each collector hands over

- of each runner: the generator that actions are sampled with, the state of pink noise, the number of the next message,
  the slots in the order in which they are given away, and the steps of later rounds that it has answered in advance;
- of each such session: its position, the environment parameters that it received and the generators that they are
  drawn with, and its agents, none of which acts: running episodes, returns, recurrent memories, open segments.

A session is taken over when its session id comes back and asks again for the agents that waited (proto/README.md,
section 10). Everything is a tree of dicts (string keys), lists, numbers, strings and arrays, which a checkpoint can
hold; on the channel it travels as an archive of arrays, without pickle. Needs no torch.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np

from ludus.protocol.batches import Array

State = dict[str, Any]

MAX_BYTES: Final = 256 << 20
"""Of one collector. Beyond it, checkpoints are taken without sessions: with pictures, rounds can be of any size."""
_ARRAY, _TREE = "$array", "tree"


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A simulator at rest."""

    session_id: str
    number: int
    position: bytes
    """Its position, in its own form."""
    parameter_set: int
    """Number of the environment parameters that it received last."""
    parameters: Mapping[str, float]
    """The values that it received."""
    draws: State
    """`ParameterDraws.state` of those values."""
    agents: Mapping[str, State] = field(default_factory=dict)
    """By announced behavior: `snapshots.agents.snapshot`."""

    def to_state(self) -> State:
        """Return it as a tree."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        return {**values, "position": np.frombuffer(self.position, np.uint8)}

    @classmethod
    def from_state(cls, state: State) -> "SessionSnapshot":
        """Read the output of `to_state`."""
        values = {attribute.name: state[attribute.name] for attribute in fields(cls)}
        return cls(**{**values, "position": state["position"].tobytes()})


def merged(collectors: Sequence[State], index: int) -> State:
    """Return the part of all snapshots that collector `index` needs: its own runners, and every session."""
    sessions = {session["session_id"]: session for each in collectors for session in each["sessions"]}
    runners = collectors[index]["lanes"] if index < len(collectors) else {}
    return {"lanes": runners, "sessions": list(sessions.values())}


def pack(state: State) -> bytes:
    """Write a tree as one archive."""
    arrays: dict[str, Array] = {}
    text = json.dumps(_flattened(state, arrays))
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **{_TREE: np.frombuffer(text.encode(), np.uint8)}, **arrays)
    return file.getvalue()


def unpack(payload: bytes) -> State:
    """Read the output of `pack`."""
    with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
        arrays = dict(archive)
    state: State = _unflattened(json.loads(arrays.pop(_TREE).tobytes()), arrays)
    return state


def _flattened(value: object, arrays: dict[str, Array]) -> Any:
    match value:
        case np.ndarray():
            name = str(len(arrays))
            arrays[name] = value
            return {_ARRAY: name}
        case dict():
            return {key: _flattened(item, arrays) for key, item in value.items()}
        case list() | tuple():
            return [_flattened(item, arrays) for item in value]
        case _:
            return value


def _unflattened(value: object, arrays: Mapping[str, Array]) -> Any:
    match value:
        case {"$array": name}:
            return arrays[name]
        case dict():
            return {key: _unflattened(item, arrays) for key, item in value.items()}
        case list():
            return [_unflattened(item, arrays) for item in value]
        case _:
            return value
