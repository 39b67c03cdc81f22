"""From columns of actions to a reply: the messages of all agents are one table of bytes.

The bytes are those of `UnityInputProto.rl_input.agent_actions`, an entry per behavior. All of a behavior's agents have
messages of one size, so the columns are written into a table that holds everything else already. Choices of branches
are varints; where a branch has more than 128 choices, small ones are padded to the width of the largest, which every
parser accepts.

Each action stands there twice: in the fields of today, and in the deprecated one of packages before hybrid actions,
continuous columns first, then the choices as floats.
"""

import numpy as np

from ludus.protocol.batches import Bytes, Floats, Ints
from ludus.protocol.spec import ActionSpec
from ludus.protocol.wire import varint

_HEADER = b"\x0a\x03\x08\xc8\x01"
"""`UnityMessageProto.header`: status 200."""
CLOSING_REPLY = b"\x0a\x03\x08\x90\x03"
"""The reply that ends a conversation: status 400."""
_UNITY_INPUT, _RL_INPUT = b"\x1a", b"\x0a"
_AGENT_ACTIONS, _COMMAND, _SIDE_CHANNEL = b"\x0a", b"\x20", b"\x2a"
_KEY, _VALUE = b"\x0a", b"\x12"
_ACTION = b"\x0a"
_DEPRECATED, _CONTINUOUS, _DISCRETE = b"\x0a", b"\x32", b"\x3a"
"""Tags of the fields that are written, in the order of the messages."""
RESET = b"\x01"
"""`CommandProto.RESET`; STEP is 0 and therefore never written."""


class ActionEncoder:
    """Encodes the actions of one behavior."""

    def __init__(self, name: str, actions: ActionSpec) -> None:
        key = name.encode()
        self._key = _KEY + varint(len(key)) + key
        continuous, branches = actions.continuous_size, len(actions.discrete_branches)
        # Bytes of the varint of the largest choice: seven bits each.
        width = max(-(-(max(actions.discrete_branches, default=1) - 1).bit_length() // 7), 1)
        message = bytearray()
        self._deprecated = _room(message, _DEPRECATED, 4 * (continuous + branches))
        self._continuous = _room(message, _CONTINUOUS, 4 * continuous)
        self._discrete = _room(message, _DISCRETE, width * branches)
        self._width = width
        entry = _ACTION + varint(len(message)) + bytes(message)
        self._offset = len(entry) - len(message)
        self._row = np.frombuffer(entry, np.uint8)

    def encode(self, continuous: Floats, discrete: Ints) -> bytes:
        """Return the entry of `agent_actions` for N agents: continuous (N, C), discrete (N, D)."""
        rows = len(continuous)
        table = np.tile(self._row, (rows, 1))
        body = table[:, self._offset :]
        both = np.concatenate([continuous, discrete], axis=1, dtype="<f4") if discrete.shape[1] else continuous
        body[:, self._deprecated] = _bytes_of(both)
        if continuous.shape[1]:
            body[:, self._continuous] = _bytes_of(continuous)
        if discrete.shape[1]:
            body[:, self._discrete] = self._varints(discrete)
        actions = table.tobytes()
        value = _VALUE + varint(len(actions)) + actions
        return b"".join((_AGENT_ACTIONS, varint(len(self._key) + len(value)), self._key, value))

    def _varints(self, discrete: Ints) -> Bytes:
        """Return (N, D * width): each choice in as many bytes as the largest one needs."""
        if self._width == 1:
            return discrete.astype(np.uint8)
        shifted = discrete[:, :, None] >> (7 * np.arange(self._width))
        parts = (shifted & 0x7F).astype(np.uint8)
        parts[:, :, :-1] |= 0x80
        return parts.reshape(len(discrete), -1)


def step_reply(entries: list[bytes], side_channel: bytes = b"") -> bytes:
    """Return the reply with actions, an entry per behavior."""
    return _reply(b"".join(entries), side_channel)


def reset_reply(side_channel: bytes) -> bytes:
    """Return the reply that makes a player begin new episodes."""
    return _reply(_COMMAND + RESET, side_channel)


def _reply(fields: bytes, side_channel: bytes) -> bytes:
    if side_channel:
        fields += _SIDE_CHANNEL + varint(len(side_channel)) + side_channel
    rl_input = _RL_INPUT + varint(len(fields)) + fields
    return b"".join((_HEADER, _UNITY_INPUT, varint(len(rl_input)), rl_input))


def _room(message: bytearray, tag: bytes, size: int) -> slice:
    """Append a field of `size` bytes, unless there are none, and return the position of its value."""
    if size:
        message += tag + varint(size) + bytes(size)
    return slice(len(message) - size, len(message))


def _bytes_of(values: Floats) -> Bytes:
    """Return (N, 4 * columns)."""
    return np.ascontiguousarray(values, "<f4").view(np.uint8)
