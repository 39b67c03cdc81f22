"""The few fields that a bridge reads are those that protobuf would have read, and garbage is left alone."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.games.unity import messages
from ludus.protocol.mlagents import agent_pb2
from ludus.protocol.mlagents import unity_pb2 as pb


def brain(name: str, actions: int = 2) -> agent_pb2.BrainParametersProto:
    spec = agent_pb2.ActionSpecProto(num_continuous_actions=actions)
    return agent_pb2.BrainParametersProto(brain_name=name, is_training=True, action_spec=spec)


def step(agents: dict[str, int], announce: tuple[str, ...] = ()) -> pb.UnityMessageProto:
    message = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
    for name, count in agents.items():
        infos = message.unity_output.rl_output.agentInfos[name]
        for agent in range(count):
            infos.value.add(id=agent, reward=0.5).observations.add(shape=[300]).float_data.data.extend([1.0] * 300)
    message.unity_output.rl_output.side_channel = b"frames"
    message.unity_output.rl_initialization_output.brain_parameters.extend(brain(name) for name in announce)
    return message


def hello() -> bytes:
    said = pb.UnityRLInitializationOutputProto(name="AcademySingleton", communication_version="1.5.0")
    output = pb.UnityOutputProto(rl_initialization_output=said)
    return pb.UnityMessageProto(header=pb.HeaderProto(status=200), unity_output=output).SerializeToString()


def test_side_channels_are_found_where_protobuf_finds_them() -> None:
    twice = step({"Ball?team=0": 1})
    twice.unity_output.rl_output.side_channel = b"the last one counts"
    message = step({"Ball?team=0": 2}, announce=("Ball?team=0",)).SerializeToString()

    for said in (message, message + twice.SerializeToString()):
        merged = pb.UnityMessageProto.FromString(said).unity_output.rl_output.side_channel
        assert messages.outline(said).unity_output.rl_output.side_channel == merged
    for silent in (hello(), b"", message[: len(message) // 2]):
        assert messages.outline(silent).unity_output.rl_output.side_channel == b""


def test_the_outline_tells_the_calls_of_a_handshake_apart() -> None:
    second = pb.UnityMessageProto(header=pb.HeaderProto(status=200)).SerializeToString()
    third = step({"Ball?team=0": 3}, announce=("Ball?team=0",)).SerializeToString()

    tops = [messages.outline(message) for message in (hello(), second, third)]

    assert [top.HasField("unity_output") for top in tops] == [True, False, True]
    assert [messages.introduces(top) for top in tops] == [True, False, False]
    assert not any(messages.closes(top) for top in tops)


def test_a_goodbye_closes() -> None:
    assert messages.closes(messages.outline(messages.GOODBYE))
    assert messages.outline(messages.GOODBYE).header.status == 400


def test_announcements_are_kept_as_they_came() -> None:
    message = step({"Ball?team=0": 1, "Wächter?team=1": 1}, announce=("Ball?team=0", "Wächter?team=1"))
    data = message.SerializeToString()

    found = messages.announced(messages.outline(data))

    assert {name: agent_pb2.BrainParametersProto.FromString(raw) for name, raw in found.items()} == {
        "Ball?team=0": brain("Ball?team=0"),
        "Wächter?team=1": brain("Wächter?team=1"),
    }


def test_behaviors_without_agents_do_not_count_as_populated() -> None:
    data = step({"Ball?team=0": 0, "Wall?team=0": 2}).SerializeToString()

    assert messages.populated(messages.outline(data)) == ["Wall?team=0"]


def test_added_announcements_are_merged_by_whoever_parses_the_message() -> None:
    before = step({"Ball?team=0": 2, "Wall?team=0": 1}, announce=("Wall?team=0",))

    data = messages.announcing(before.SerializeToString(), [brain("Ball?team=0").SerializeToString()])

    after = pb.UnityMessageProto.FromString(data)
    names = [each.brain_name for each in after.unity_output.rl_initialization_output.brain_parameters]
    assert names == ["Wall?team=0", "Ball?team=0"]
    assert after.unity_output.rl_output == before.unity_output.rl_output


def test_frames_are_added_behind_those_of_the_reply() -> None:
    reply = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
    reply.unity_input.rl_input.command = pb.RESET
    reply.unity_input.rl_input.side_channel = b"first"

    data = messages.with_frames(reply.SerializeToString(), lambda frames: frames.replace(b"first", b"second"))

    reply.unity_input.rl_input.side_channel = b"firstsecond"
    assert pb.UnityMessageProto.FromString(data) == reply


def test_cameras_are_counted_in_the_first_agent_of_a_list() -> None:
    message = step({"Ball?team=0": 1, "Seer?team=0": 1, "Nobody?team=0": 0})
    message.unity_output.rl_output.agentInfos["Seer?team=0"].value[0].observations.add(shape=[3, 84, 84])

    assert messages.pictures(message.SerializeToString()) == {"Seer?team=0": 1}


@given(st.binary(max_size=200))
def test_garbage_is_no_error(data: bytes) -> None:
    top = messages.outline(data)

    messages.announced(top)
    messages.populated(top)
    messages.introduces(top)
    messages.pictures(data)
    messages.with_frames(data, lambda _: b"x")


@given(st.data())
def test_a_mutated_message_is_no_error(data: st.DataObject) -> None:
    whole = bytearray(step({"Ball?team=0": 1}, announce=("Ball?team=0",)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    mutated = bytes(whole)

    messages.announced(messages.outline(mutated))
    messages.populated(messages.outline(mutated))


@pytest.mark.parametrize("filler", [b"\x00", b"\x78\x00"])
def test_megabytes_of_garbage_cost_no_time(filler: bytes) -> None:
    started = time.monotonic()

    top = messages.outline(filler * 5_000_000)

    assert time.monotonic() - started < 0.5
    nothing = messages.outline(b"")
    assert (top.header, top.unity_output) == (nothing.header, nothing.unity_output)


@pytest.mark.parametrize("size", [1, 127, 128, 20_000])
def test_lengths_of_any_size_are_encoded(size: int) -> None:
    parameters = agent_pb2.BrainParametersProto(brain_name="x" * size)

    data = messages.announcing(b"", [parameters.SerializeToString()])

    assert pb.UnityMessageProto.FromString(data).unity_output.rl_initialization_output.brain_parameters == [parameters]
