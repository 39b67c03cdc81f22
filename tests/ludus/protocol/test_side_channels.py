"""Side channels are ML-Agents' bytes, both ways; what is damaged is named, and raises nothing else."""

import contextlib
import math
import struct
from uuid import UUID, uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ludus.protocol.batches import Aggregation, StatValue
from ludus.protocol.codes import CloseCode, ProtocolError
from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, Uniform
from ludus.protocol.side_channels import (
    ENGINE_CONFIGURATION,
    ENVIRONMENT_PARAMETERS,
    FLOAT_PROPERTIES,
    MAX_FRAMES,
    STATS,
    TRAINING_ANALYTICS,
    EngineConfiguration,
    EngineOverrides,
    Frame,
    engine_configuration,
    environment_parameter,
    float_property,
    join,
    read,
    split,
)

RAW = UUID("00112233-4455-6677-8899-aabbccddeeff")

FRAMES = st.lists(st.builds(Frame, st.uuids(), st.binary(max_size=40)), max_size=6)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def stat(key: str, value: float, aggregation: int) -> Frame:
    """What C# writes: string, float32, int32."""
    return Frame(STATS, struct.pack("<i", len(key)) + key.encode() + struct.pack("<fi", value, aggregation))


def refusal(data: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as raised:
        read(data)
    return raised.value


# --- frames ---


def test_a_frame_is_the_channels_guid_its_length_and_its_payload() -> None:
    # .NET writes the first three groups of a Guid little-endian
    assert join([Frame(RAW, b"hello")]) == bytes.fromhex("33221100 5544 7766 8899 aabbccddeeff 05000000") + b"hello"


@given(FRAMES)
def test_frames_come_back_as_they_were(frames: list[Frame]) -> None:
    assert split(join(frames)) == frames


@given(FRAMES.filter(bool), st.integers(min_value=1, max_value=19))
def test_a_message_that_is_cut_off_names_the_frame(frames: list[Frame], missing: int) -> None:
    data = join(frames)
    cut = data[: len(data) - missing]

    if len(split_ends(frames) & {len(cut)}):
        return  # a whole frame is gone: nothing tells that it was there
    with pytest.raises(ProtocolError, match=r"^frame \d+") as raised:
        split(cut)

    assert raised.value.code is CloseCode.BAD_SIDE_CHANNEL


def split_ends(frames: list[Frame]) -> set[int]:
    return {len(join(frames[:count])) for count in range(len(frames) + 1)}


@pytest.mark.parametrize("length", [-1, 4, 2**31 - 1])
def test_a_length_that_is_not_there_is_named_with_its_channel(length: int) -> None:
    error = refusal(RAW.bytes_le + struct.pack("<i", length) + b"abc")

    assert error.message == f"frame 0, of channel {RAW}, announces {length} bytes; 3 are left"


def test_all_stats_of_the_longest_message_of_ml_agents_are_read() -> None:
    frame = join([stat("", 1, 0)])

    assert len(split(frame * (4 * 2**20 // len(frame)))) <= MAX_FRAMES


def test_a_message_of_too_many_frames_is_refused() -> None:
    head = RAW.bytes_le + bytes(4)

    assert len(split(head * MAX_FRAMES)) == MAX_FRAMES
    assert refusal(head * (MAX_FRAMES + 1)).code is CloseCode.BAD_SIDE_CHANNEL


# --- from the trainer: ML-Agents' own bytes ---


@pytest.mark.parametrize(
    ("key", "value", "payload"),
    [
        ("gravity", Uniform(1, 2, seed=1), "07000000 67726176697479 01000000 01000000 00000000 0000803f 00000040"),
        ("size", Constant(1.5), "04000000 73697a65 00000000 0000c03f"),
        ("size", Gaussian(1, 0.5, seed=-2), "04000000 73697a65 01000000 feffffff 01000000 0000803f 0000003f"),
        (
            "size",
            MultiRangeUniform(((1, 2), (3, 4)), seed=3),
            "04000000 73697a65 01000000 03000000 02000000 04000000 0000803f 00000040 00004040 00008040",
        ),
    ],
)
def test_environment_parameters_are_ml_agents_bytes(
    key: str, value: Constant | Uniform | Gaussian | MultiRangeUniform, payload: str
) -> None:
    assert environment_parameter(key, value) == Frame(ENVIRONMENT_PARAMETERS, bytes.fromhex(payload))


def test_the_engine_configuration_is_five_frames_in_ml_agents_order() -> None:
    frames = engine_configuration(EngineConfiguration())

    assert {frame.channel for frame in frames} == {ENGINE_CONFIGURATION}
    assert [frame.payload.hex() for frame in frames] == [
        "000000005400000054000000",
        "0100000005000000",
        "020000000000a041",
        "03000000ffffffff",
        "040000003c000000",
    ]


def test_every_engine_property_lands_in_its_own_frame() -> None:
    frames = engine_configuration(EngineConfiguration(1280, 720, 3, 1.5, 30, 0))

    assert [frame.payload for frame in frames] == [
        struct.pack("<iii", 0, 1280, 720),
        struct.pack("<ii", 1, 3),
        struct.pack("<if", 2, 1.5),
        struct.pack("<ii", 3, 30),
        struct.pack("<ii", 4, 0),
    ]


def test_channels_have_ml_agents_ids_on_the_wire() -> None:
    assert [
        channel.bytes_le.hex()
        for channel in (ENGINE_CONFIGURATION, ENVIRONMENT_PARAMETERS, FLOAT_PROPERTIES, STATS, TRAINING_ANALYTICS)
    ] == [
        "2c3451e97e4fea11b238784f4387d1f7",
        "1e894c530f81ea11a9d0822485860400",
        "d0f7cc607e4fea11b238784f4387d1f7",
        "b7f7d8a1c8cef950b78bd3e165a78520",
        "a9a464b66fd85f5a95cbe8353a7e8356",
    ]


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        ("größe", Constant(1), "not ASCII"),
        ("size", Constant(1e39), "not a float of 32 bits"),
        ("size", Uniform(0, 1, seed=2**31), "seed: 2147483648 is not an integer of 32 bits"),
    ],
)
def test_what_a_player_cannot_hold_is_refused_by_name(key: str, value: Constant | Uniform, names: str) -> None:
    with pytest.raises(ValueError, match=rf"^environment parameter '{key}'.*{names}"):
        environment_parameter(key, value)


def test_an_engine_property_that_a_player_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"^width: 4294967296"):
        engine_configuration(EngineConfiguration(width=2**32))


# --- from the player ---


def test_stats_of_all_four_aggregations_arrive() -> None:
    received = read(join([stat(f"Game/{number}", number / 4, number) for number in range(4)]))

    assert received.stats == [
        StatValue("Game/0", 0.0, Aggregation.AVERAGE),
        StatValue("Game/1", 0.25, Aggregation.MOST_RECENT),
        StatValue("Game/2", 0.5, Aggregation.SUM),
        StatValue("Game/3", 0.75, Aggregation.HISTOGRAM),
    ]


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (stat("Goals", math.nan, 0), "stat 'Goals' is nan"),
        (stat("Goals", -math.inf, 0), "stat 'Goals' is -inf"),
        (stat("", 1, 0), "a stat's key must have 1 to 200 printable bytes"),
        (stat("x" * 201, 1, 0), "a stat's key must have 1 to 200 printable bytes"),
        (stat("Goals", 1, -1), "stat 'Goals' has no aggregation -1"),
        (stat("Goals", 1, 4), "stat 'Goals' has no aggregation 4"),
        (Frame(STATS, b"\x01\x00"), "the channel of stats: key needs 4 bytes; 2 are left of 2"),
        (Frame(STATS, struct.pack("<i", -1)), "the channel of stats: key has a length of -1"),
        (
            Frame(STATS, struct.pack("<i", 2**31 - 1)),
            "the channel of stats: key needs 2147483647 bytes; 0 are left of 4",
        ),
        (Frame(STATS, struct.pack("<i", 1) + b"\xff"), "the channel of stats: key is not ASCII"),
        (Frame(STATS, struct.pack("<i", 1) + b"k\x00"), "the channel of stats: value needs 4 bytes; 1 are left of 6"),
        (
            Frame(FLOAT_PROPERTIES, struct.pack("<i", 900) + b"x"),
            "the channel of float properties: key needs 900 bytes; 1 are left of 5",
        ),
    ],
)
def test_a_number_that_cannot_be_taken_costs_only_itself(bad: Frame, sentence: str) -> None:
    received = read(join([stat("Before", 1, 0), bad, stat("After", 2, 0)]))

    assert [value.key for value in received.stats] == ["Before", "After"]
    assert received.refused == [sentence]


@given(st.text(st.characters(codec="ascii"), max_size=20), FLOATS)
def test_float_properties_go_both_ways(key: str, value: float) -> None:
    assert read(join([float_property(key, value)])).float_properties == {key: value}


def test_the_last_of_several_float_properties_of_one_key_stands() -> None:
    assert read(join([float_property("a", 1), float_property("a", 2)])).float_properties == {"a": 2.0}


def test_channels_that_only_the_game_knows_are_handed_on_in_their_order() -> None:
    frames = [Frame(RAW, b"one"), Frame(uuid4(), b""), Frame(RAW, b"two")]

    assert read(join(frames)).raw == frames


def test_training_analytics_are_not_looked_at() -> None:
    received = read(join([Frame(TRAINING_ANALYTICS, b"\xff\xff"), stat("Goals", 1, 0)]))

    assert received.raw == []
    assert [value.key for value in received.stats] == ["Goals"]


@pytest.mark.parametrize(
    ("channel", "name"),
    [(ENGINE_CONFIGURATION, "the engine configuration"), (ENVIRONMENT_PARAMETERS, "the environment parameters")],
)
def test_a_player_that_writes_on_a_trainers_channel_is_told_which(channel: UUID, name: str) -> None:
    error = refusal(join([Frame(channel, b"")]))

    assert error.code is CloseCode.BAD_SIDE_CHANNEL
    assert error.message == (f"the player wrote on the channel of {name} ({channel}), which only the trainer writes")


def test_fields_that_are_not_there_are_zero_as_in_ml_agents() -> None:
    only_key = Frame(STATS, struct.pack("<i", 1) + b"k")

    assert read(join([only_key])).stats == [StatValue("k", 0.0, Aggregation.AVERAGE)]


@given(
    st.lists(
        st.builds(
            Frame,
            st.sampled_from([STATS, FLOAT_PROPERTIES, ENGINE_CONFIGURATION, TRAINING_ANALYTICS, RAW]),
            st.binary(max_size=24) | st.just(stat("Goals", 1, 3).payload),
        ),
        max_size=3,
    ),
    st.lists(st.tuples(st.integers(min_value=0), st.binary(max_size=3)), max_size=4),
)
@example([stat("Goals", 1, 0)], [(len(STATS.bytes_le), b"\xff\xff\xff")])
def test_damaged_bytes_raise_nothing_but_a_protocol_error(
    frames: list[Frame], damages: list[tuple[int, bytes]]
) -> None:
    data = join(frames)
    for position, replacement in damages:
        at = position % (len(data) + 1)
        data = data[:at] + replacement + data[at + 1 :]

    with contextlib.suppress(ProtocolError):
        read(data)


GIVEN = join(engine_configuration(EngineConfiguration(width=640, height=480)))


def test_only_what_was_typed_is_sent() -> None:
    frames = split(EngineOverrides(time_scale=1.0, capture_frame_rate=0).frames(GIVEN))

    assert frames == [
        engine_configuration(EngineConfiguration(time_scale=1.0, capture_frame_rate=0))[i] for i in (2, 4)
    ]


def test_a_width_alone_keeps_the_runs_height() -> None:
    frames = split(EngineOverrides(width=1280).frames(GIVEN))

    assert frames == engine_configuration(EngineConfiguration(width=1280, height=480))[:1]


def test_a_width_alone_has_the_default_height_where_the_run_says_nothing() -> None:
    assert split(EngineOverrides(width=1280).frames(b"")) == engine_configuration(EngineConfiguration(width=1280))[:1]


def test_frames_that_cannot_be_read_are_no_error() -> None:
    assert split(EngineOverrides(quality_level=1).frames(b"garbage"))


def test_nothing_typed_is_nothing() -> None:
    assert not EngineOverrides()
    assert EngineOverrides(time_scale=0.0)
