"""Side channels at a real collector: what it says is ML-Agents' byte for byte, what it hears becomes the run's."""

import struct
from collections.abc import Iterator
from uuid import UUID

import pytest

from ludus.collector.messages import SimulatorStarted, StatsReported
from ludus.protocol.batches import Aggregation
from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, Uniform
from ludus.protocol.mlagents import unity_pb2
from ludus.protocol.side_channels import EngineConfiguration
from tests.ludus.collector.stack import Learner, learner
from tests.ludus.collector.unity.players import Participant, left, trouble
from tests.ludus.collector.unity.raw import SECOND_CALL, Raw, agents, introduction
from tests.unity.descriptions import Behavior
from tests.unity.side_channels import ANALYTICS, ENGINE, FLOATS, PARAMETERS, STATS
from worker.collectors.events import EpisodesEnded

# The examples of bytes that were seen on ML-Agents' wire.
GRAVITY = "07000000 67726176697479 01000000 01000000 00000000 0000803F 00000040"
SIZE = "04000000 73697A65 00000000 0000C03F"
LOAD = "04000000 6C6F6164 01000000 03000000 02000000 04000000 0000803F 00000040 00004040 00008040"
WIND = "04000000 77696E64 01000000 09000000 01000000 0000803F 0000003F"
ENGINE_CONFIGURATION = (
    "00000000 54000000 54000000",
    "01000000 05000000",
    "02000000 0000A041",
    "03000000 FFFFFFFF",
    "04000000 3C000000",
)


@pytest.fixture(scope="module")
def trainer() -> Iterator[Learner]:
    parameters = {
        "gravity": Uniform(1.0, 2.0, seed=1),
        "size": Constant(1.5),
        "load": MultiRangeUniform(((1.0, 2.0), (3.0, 4.0)), seed=3),
        "wind": Gaussian(1.0, 0.5, seed=9),
    }
    with learner(size=96, environment_parameters=parameters, engine=EngineConfiguration()) as running:
        yield running


def framed(channel: UUID, *payloads: str) -> bytes:
    """Return the bytes of frames with these payloads, in hexadecimal."""
    contents = [bytes.fromhex(payload) for payload in payloads]
    return b"".join(channel.bytes_le + struct.pack("<i", len(content)) + content for content in contents)


def said(reply: unity_pb2.UnityMessageProto) -> bytes:
    return bytes(reply.unity_input.rl_input.side_channel)


def test_the_first_reset_brings_parameters_and_then_the_engine_configuration(trainer: Learner) -> None:
    raw = Raw(trainer)
    welcome = raw.call(introduction())

    opening = said(raw.call(SECOND_CALL))

    assert not welcome.unity_input.HasField("rl_input")
    assert opening == framed(PARAMETERS, GRAVITY, SIZE, LOAD, WIND) + framed(ENGINE, *ENGINE_CONFIGURATION)
    raw.close()


def test_new_parameters_come_once_with_the_next_step_and_reset_nothing() -> None:
    with learner(size=96, environment_parameters={"size": Constant(1.0)}) as trainer:
        raw = Raw(trainer)
        raw.shake_hands()
        raw.call(agents(0))

        trainer.pool.send_parameters(
            {"load": MultiRangeUniform(((1.0, 2.0), (3.0, 4.0)), seed=3), "size": Constant(1.5)}, 1
        )

        replies = [raw.call(agents(0)).unity_input.rl_input]
        while not replies[-1].side_channel:
            assert len(replies) < 200
            replies.append(raw.call(agents(0)).unity_input.rl_input)
        assert replies[-1].side_channel == framed(PARAMETERS, LOAD, SIZE)
        assert replies[-1].command == unity_pb2.STEP
        assert list(replies[-1].agent_actions) == ["Raw?team=0"]
        assert said(raw.call(agents(0))) == b""
        raw.close()


def test_a_player_that_comes_later_is_told_the_newest_parameters_at_once() -> None:
    with learner(size=96, environment_parameters={"gravity": Constant(1.0)}) as trainer:
        early, late = Raw(trainer), Raw(trainer)
        early.shake_hands()
        trainer.pool.send_parameters({"size": Constant(1.5)}, 1)
        while not said(early.call(agents(0))):
            pass

        late.call(introduction())

        assert said(late.call(SECOND_CALL)) == framed(PARAMETERS, SIZE) + framed(ENGINE, *ENGINE_CONFIGURATION)
        assert said(late.call(agents(0))) == b""
        for each in (early, late):
            each.close()


def test_episodes_of_a_player_carry_the_parameters_that_it_was_told() -> None:
    with learner(size=96, environment_parameters={"size": Constant(1.0)}) as trainer:
        participant = Participant.at(trainer, [Behavior("Told?team=0", continuous=1, episode_length=5)])
        trainer.wait_for(EpisodesEnded)
        trainer.pool.send_parameters({"size": Constant(1.5)}, 1)
        trainer.wait_for(EpisodesEnded, lambda notice: 1 in notice.records["parameter_set"])
        summary = participant.leave()

        events = trainer.heard(EpisodesEnded)
        numbers = [number for event in events for number in event.records["parameter_set"].tolist()]
        assert numbers == sorted(numbers)
        assert set(numbers) == {0, 1}
        assert summary.resets == 0
        assert summary.parameters["size"] == ["constant", 1.5]


def test_later_resets_bring_their_parameters_alone() -> None:
    with learner(size=96, engine=EngineConfiguration()) as trainer:  # later sessions are told what a reset brought
        trainer.held.add("Later")
        raw = Raw(trainer)
        raw.shake_hands()
        waiting = raw.later(agents(0, behavior="Later?team=0"))
        trainer.wait_for(SimulatorStarted, lambda notice: notice.behaviors == ("Later?team=0",))

        trainer.pool.send_parameters(
            {"load": MultiRangeUniform(((1.0, 2.0), (3.0, 4.0)), seed=3), "size": Constant(1.5)}, 0, reset=True
        )

        reply = waiting.reply().unity_input.rl_input
        assert reply.command == unity_pb2.RESET
        assert not reply.agent_actions
        assert reply.side_channel == framed(PARAMETERS, LOAD, SIZE)
        raw.close()


def test_a_reset_before_the_second_call_changes_what_that_call_brings() -> None:
    with learner(size=96, engine=EngineConfiguration()) as trainer:  # later sessions are told what a reset brought
        trainer.held.add("Witness")
        witness, raw = Raw(trainer), Raw(trainer)
        witness.shake_hands()
        waiting = witness.later(agents(0, behavior="Witness?team=0"))
        trainer.wait_for(SimulatorStarted, lambda notice: notice.behaviors == ("Witness?team=0",))
        raw.call(introduction())

        trainer.pool.send_parameters({"size": Constant(1.5)}, 0, reset=True)
        waiting.reply()

        assert said(raw.call(SECOND_CALL)) == framed(PARAMETERS, SIZE) + framed(ENGINE, *ENGINE_CONFIGURATION)
        for each in (witness, raw):
            each.close()


def test_stats_of_all_four_aggregations_become_the_run_s(trainer: Learner) -> None:
    participant = Participant.at(trainer, [Behavior("Reporter?team=0", continuous=1)], 10, stats=True)
    assert participant.end().ending == "left"

    # The player reports how many messages it has sent: 2 to 11.
    expected = {
        "Player/Average": (Aggregation.AVERAGE, ()),
        "Player/MostRecent": (Aggregation.MOST_RECENT, ()),
        "Player/Sum": (Aggregation.SUM, ()),
        "Player/Histogram": (Aggregation.HISTOGRAM, tuple(map(float, range(2, 12)))),
    }
    for key, (aggregation, values) in expected.items():
        trainer.until(lambda key=key: sum(notice.count for notice in reported(trainer, key)) == 10)  # type: ignore[misc]
        events = reported(trainer, key)
        assert {notice.aggregation for notice in events} == {aggregation}
        assert sum(notice.total for notice in events) == sum(range(2, 12))
        assert events[-1].last == 11
        assert sum((notice.values for notice in events), ()) == values


def reported(trainer: Learner, key: str) -> list[StatsReported]:
    return [notice for notice in trainer.heard(StatsReported) if notice.key == key]


def test_float_properties_raw_bytes_and_training_analytics_do_no_harm(trainer: Learner) -> None:
    raw = Raw(trainer)
    raw.shake_hands()
    speech = framed(FLOATS, "04000000 73697A65 0000C03F") + framed(UUID(int=5), "00FF") + framed(ANALYTICS, "0A00")

    reply = raw.call(agents(0, behavior="Talker?team=0", side_channel=speech))

    assert len(reply.unity_input.rl_input.agent_actions["Talker?team=0"].value) == 1
    raw.close()


@pytest.mark.parametrize(
    ("speech", "code", "reason"),
    [
        (b"too short", "bad_side_channel", "cut off in its head"),
        (STATS.bytes_le + struct.pack("<i", 99) + b"abc", "bad_side_channel", "announces 99 bytes; 3 are left"),
        (STATS.bytes_le + struct.pack("<i", -1), "bad_side_channel", "announces -1 bytes"),
        (framed(ENGINE, "00000000"), "bad_side_channel", "which only the trainer writes"),
        (framed(PARAMETERS, SIZE), "bad_side_channel", "which only the trainer writes"),
    ],
)
def test_damaged_frames_end_the_session_by_name(speech: bytes, code: str, reason: str, trainer: Learner) -> None:
    raw = Raw(trainer)
    number = raw.shake_hands()

    reply = raw.call(agents(0, behavior="Damaged?team=0", side_channel=speech))

    assert (reply.header.status, raw.close_code) == (400, code)
    assert reason in raw.reason
    assert left(trainer, number).reason == raw.reason
    raw.close()


def test_stats_that_cannot_be_metrics_are_left_out_with_a_word_and_do_not_end_the_session(trainer: Learner) -> None:
    raw = Raw(trainer)
    number = raw.shake_hands()
    nan, good = "03000000 4E614E 0000C07F 00000000", "04000000 676F6F64 0000803F 00000000"

    raw.call(agents(0, behavior="Sloppy?team=0", side_channel=framed(STATS, nan, good)))

    trainer.until(lambda: len(reported(trainer, "good")) == 1)
    assert not reported(trainer, "NaN")
    assert trouble(trainer, "bad_stat", number).sentence == "stat 'NaN' is nan; it is left out"
    raw.close()
