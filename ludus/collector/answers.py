"""Answers, encoded by hand: the one message that a collector sends thousands of times a second.

The bytes are those that protobuf makes of `ConnectResponse(actions=Actions(...))` (a test holds both equal), in a third
of the time: no message objects, one join.
"""

from ludus.protocol.wire import varint

CONTINUOUS_TAG = b"\x1a"
DISCRETE_TAG = b"\x22"
AGENTS_TAG = b"\x12"
"""Fields 3, 4 and 2 of `BehaviorActions`, length-delimited."""


def name_field(behavior: str) -> bytes:
    """Encode the behavior's name, to be kept: it is the same in every answer."""
    name = behavior.encode()
    return b"\x0a" + varint(len(name)) + name


def encode_answer(
    step_id: int, name: bytes, agent_ids: bytes, continuous: bytes, discrete: bytes, news: bytes = b""
) -> bytes:
    """Encode the actions of one behavior's agents. `name` is a `name_field`; empty columns are left out.

    `news` are further fields of `Actions`, serialised.
    """
    fields = [name]
    if agent_ids:
        fields += (AGENTS_TAG, varint(len(agent_ids)), agent_ids)
    if continuous:
        fields += (CONTINUOUS_TAG, varint(len(continuous)), continuous)
    if discrete:
        fields += (DISCRETE_TAG, varint(len(discrete)), discrete)
    behavior = b"".join(fields)
    actions = b"".join((b"\x08", varint(step_id), b"\x12", varint(len(behavior)), behavior, news))
    return b"".join((b"\x12", varint(len(actions)), actions))
