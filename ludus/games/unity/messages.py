"""Reads the fields that a bridge needs from the messages that it forwards, without decoding their agents.

A message is parsed down to the parts that the bridge needs (`proto/mlagents/outline.proto`), which stay bytes. Bytes
that are not a message pass unchanged: the collector refuses them.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from google.protobuf.message import DecodeError

from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.mlagents import outline_pb2 as top_level
from ludus.protocol.mlagents import unity_pb2 as pb

OK: Final = 200
CLOSED: Final = 400
GOODBYE: Final = pb.UnityMessageProto(header=pb.HeaderProto(status=CLOSED)).SerializeToString()
"""Ends a session, in both directions."""

_HEADER_OK: Final = pb.UnityMessageProto(header=pb.HeaderProto(status=OK)).SerializeToString()
"""First bytes of a message of writers that keep the fields' order: most messages need not be parsed."""


def outline(message: bytes) -> top_level.Outline:
    """Read the top of a message. Other bytes give an outline without content."""
    try:
        return top_level.Outline.FromString(message)
    except DecodeError:
        return top_level.Outline()


def closes(top: top_level.Outline) -> bool:
    """Whether a message ends the session."""
    return top.header.status not in {0, OK}


def goes_on(reply: bytes) -> bool:
    """Whether a trainer's reply does not end the session."""
    return reply.startswith(_HEADER_OK) or not closes(outline(reply))


def introduces(top: top_level.Outline) -> bool:
    """Whether a game begins a session: it names its version, which announcements of behaviors leave out."""
    return bool(top.unity_output.rl_initialization_output.communication_version)


def announced(top: top_level.Outline) -> dict[str, bytes]:
    """Return the behaviors that a message announces: key -> BrainParametersProto as it came."""
    behaviors = {}
    for parameters in top.unity_output.rl_initialization_output.brain_parameters:
        with suppress(DecodeError):
            behaviors[agent.BrainParametersProto.FromString(parameters).brain_name] = parameters
    return behaviors


def populated(top: top_level.Outline) -> list[str]:
    """Return the behaviors for which a message lists at least one agent."""
    return [name for name, infos in top.unity_output.rl_output.agent_infos.items() if infos]


def announcing(message: bytes, behaviors: Iterable[bytes]) -> bytes:
    """Add announcements to a player's message. Parsers merge them with the message's own."""
    output = top_level.Output(rl_initialization_output=top_level.Initialization(brain_parameters=behaviors))
    return message + top_level.Outline(unity_output=output).SerializeToString()


def with_frames(reply: bytes, frames: Callable[[bytes], bytes]) -> bytes:
    """Append the frames that `frames` returns to a reply's side channels; other bytes are not changed."""
    try:
        message = pb.UnityMessageProto.FromString(reply)
    except DecodeError:
        return reply
    message.unity_input.rl_input.side_channel += frames(message.unity_input.rl_input.side_channel)
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
