"""Reads the fields that a bridge needs from the messages that it forwards, without decoding them.

A message is walked at its top levels only (a few microseconds for every size), because the bridge does not need the
agents' infos that fill it. Bytes that are not a message pass unchanged: the collector refuses them. Layout of the
fields: `proto/mlagents/unity.proto`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from ludus.protocol.mlagents import unity_pb2 as pb
from ludus.protocol.wire import BYTES, VARINT, Field, bytes_field, fields, read_varint

OK: Final = 200
CLOSED: Final = 400
GOODBYE: Final = pb.UnityMessageProto(header=pb.HeaderProto(status=CLOSED)).SerializeToString()
"""Ends a session, in both directions."""

_HEADER_OK: Final = pb.UnityMessageProto(header=pb.HeaderProto(status=OK)).SerializeToString()
"""First bytes of a message of writers that keep the fields' order: most messages need not be walked."""
MAX_FIELDS: Final = 64
"""A message with more fields at its top is none: there are three, each once or, by merging, a few times."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The top of a message."""

    status: int = OK
    """The header's; 0 if there is none."""
    says: bool = False
    """Whether the player says something: its second call does not."""
    agents: tuple[int, int] | None = None
    """Start and end of `unity_output.rl_output`."""
    initialization: tuple[int, int] | None = None
    """Start and end of `unity_output.rl_initialization_output`."""

    @property
    def closes(self) -> bool:
        """Whether this message ends the session."""
        return self.status not in {0, OK}


def outline(message: bytes) -> Outline:
    """Read the top of a message. Other bytes give an outline that does not end the session."""
    status, says, agents, initialization = 0, False, None, None
    try:
        for count, (number, _, start, end) in enumerate(fields(message, 0, len(message))):
            if count == MAX_FIELDS:
                return Outline()
            if number == 1:
                status = _status(message, start, end)
            elif number == 2:
                says = True
                for inner, _, inner_start, inner_end in fields(message, start, end):
                    if inner == 1:
                        agents = (inner_start, inner_end)
                    elif inner == 2:
                        initialization = (inner_start, inner_end)
    except (ValueError, IndexError):
        return Outline()
    return Outline(status, says, agents, initialization)


def goes_on(reply: bytes) -> bool:
    """Whether a trainer's reply does not end the session."""
    return reply.startswith(_HEADER_OK) or not outline(reply).closes


def introduces(message: bytes, top: Outline) -> bool:
    """Whether a game begins a session: it names its version, which announcements of behaviors leave out."""
    if top.initialization is None:
        return False
    return any(number == 2 for number, *_ in _safely(message, top.initialization))


def announced(message: bytes, top: Outline) -> dict[str, bytes]:
    """Return the behaviors that a message announces: key -> BrainParametersProto as it came."""
    if top.initialization is None:
        return {}
    found = {}
    for number, _, start, end in _safely(message, top.initialization):
        if number == 5:
            for inner, _, name_start, name_end in _safely(message, (start, end)):
                if inner == 7:
                    found[message[name_start:name_end].decode(errors="replace")] = message[start:end]
    return found


def populated(message: bytes, top: Outline) -> Iterator[str]:
    """Yield the behaviors for which a message lists at least one agent."""
    if top.agents is None:
        return
    for number, _, start, end in _safely(message, top.agents):
        if number != 2:
            continue
        name, size = "", 0
        for inner, _, inner_start, inner_end in _safely(message, (start, end)):
            if inner == 1:
                name = message[inner_start:inner_end].decode(errors="replace")
            elif inner == 2:
                size = inner_end - inner_start
        if size:
            yield name


def side_channel(message: bytes, top: Outline) -> bytes:
    """Return the frames of side channels in a player's message."""
    found = b""
    if top.agents is not None:
        for number, kind, start, end in _safely(message, top.agents):
            if number == 3 and kind == BYTES:
                found = message[start:end]
    return found


def announcing(message: bytes, behaviors: Iterable[bytes]) -> bytes:
    """Add announcements to a player's message. Parsers merge them with the message's own."""
    initialization = b"".join(bytes_field(5, parameters) for parameters in behaviors)
    return message + bytes_field(2, bytes_field(2, initialization))


def with_frames(reply: bytes, more: Callable[[bytes], bytes]) -> bytes:
    """Append the frames that `more` returns to a reply's side channels; other bytes are not changed."""
    try:
        message = pb.UnityMessageProto.FromString(reply)
    except DecodeError:
        return reply
    message.unity_input.rl_input.side_channel += more(message.unity_input.rl_input.side_channel)
    return message.SerializeToString()


def pictures(message: bytes) -> Mapping[str, int]:
    """Return how many visual observations each behavior has, by the first agent of its list in this message."""
    try:
        lists = pb.UnityMessageProto.FromString(message).unity_output.rl_output.agentInfos
    except DecodeError:
        return {}
    counts = {
        name: sum(len(observation.shape) == 3 for observation in infos.value[0].observations)
        for name, infos in lists.items()
        if infos.value
    }
    return {name: count for name, count in counts.items() if count}


def _status(message: bytes, start: int, end: int) -> int:
    for number, kind, content, _ in fields(message, start, end):
        if number == 1 and kind == VARINT:
            return read_varint(message, content)[0]
    return 0


def _safely(message: bytes, part: tuple[int, int]) -> Iterator[Field]:
    """Yield fields up to the first that is malformed."""
    try:
        yield from fields(message, *part)
    except (ValueError, IndexError):
        return
