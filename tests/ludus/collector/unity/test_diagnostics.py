"""What may be wrong with a player costs only that player, and is said by name."""

from collections.abc import Iterator

import pytest

from ludus.collector.messages import SimulatorLeft, SimulatorProblem
from ludus.protocol.mlagents import agent_pb2 as agent
from ludus.protocol.options import PARKS_METADATA, SESSION_ID_METADATA
from tests.ludus.collector.stack import Learner, learner
from tests.ludus.collector.unity.messages import message, numbers
from tests.ludus.collector.unity.players import SEED, Participant, left, number_of, trouble
from tests.ludus.collector.unity.raw import GOODBYE, Raw, agents, introduction
from tests.unity.descriptions import Behavior, Package, Sensor, Trouble
from tests.unity.transcripts import check_transcript
from tests.waiting import eventually

MEBI = 1 << 20
GAME = [Behavior("Player?team=0", agents=2, continuous=2)]
STEP_TIMEOUT = 0.5


@pytest.fixture(scope="module")
def trainer() -> Iterator[Learner]:
    with learner(
        size=96,
        horizon=16,
        max_message_bytes=MEBI,
        step_timeout=STEP_TIMEOUT,
        second_call_timeout=0.5,
        no_agents_after=0.3,
        startup_timeout=1.0,
        late_agents_grace=0.2,
    ) as running:
        running.refusals["Stranger"] = ("behavior_not_configured", "the run's configuration has no behavior 'Stranger'")
        yield running


@pytest.fixture(scope="module")
def bystander(trainer: Learner) -> Iterator[Participant]:
    """A player that plays through every test of this module."""
    participant = Participant.at(trainer, [Behavior("Bystander?team=0", agents=2, continuous=1)], pace=0.002)
    eventually(lambda: participant.agent_steps > 0)
    yield participant
    participant.leave()
    assert check_transcript(participant.player.transcript) == []


@pytest.fixture(autouse=True)
def goes_on(trainer: Learner, bystander: Participant) -> Iterator[None]:
    """Check that the bystander goes on, whatever happens to others."""
    yield
    before = bystander.agent_steps
    eventually(lambda: bystander.agent_steps > before + 20)
    assert not any(notice.number == number_of(bystander.player.summary) for notice in trainer.heard(SimulatorLeft))


def ended(trainer: Learner, code: str) -> SimulatorLeft:
    """Wait until a session has ended with this code, and return how, once."""
    notice = trainer.wait_for(SimulatorLeft, lambda notice: notice.code == code)
    trainer.events.remove(notice)
    return notice


# The handshake -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.0.0", "0.15.0"])
def test_a_player_of_another_major_version_is_refused_by_name(version: str, trainer: Learner) -> None:
    participant = Participant.at(trainer, GAME, package=Package("9.9.9", version))

    assert participant.end().ending == "inference"
    reason = ended(trainer, "protocol_version").reason
    assert f"'{version}'" in reason
    assert "'9.9.9'" in reason


@pytest.mark.parametrize("version", ["", "1", "1.5.0.0", "one.two.three"])
def test_what_is_no_version_is_refused_as_one(version: str, trainer: Learner) -> None:
    raw = Raw(trainer)

    reply = raw.call(introduction(version))

    assert reply.header.status == 400
    assert ended(trainer, "protocol_version").number == -1
    raw.close()


def test_a_player_that_does_not_make_its_second_call_is_missed(trainer: Learner) -> None:
    participant = Participant.at(trainer, GAME, trouble=Trouble("hang", at=2))

    assert "refused our protocol version" in ended(trainer, "second_call_missing").reason
    participant.vanish()


def test_a_player_without_agents_is_worth_a_word_and_ended_after_the_startup_time(trainer: Learner) -> None:
    participant = Participant.at(trainer, [], pace=0.01)

    notice = ended(trainer, "no_agents")
    told = trouble(trainer, "no_agents", notice.number)

    assert "Decision Requester" in told.sentence
    assert "Behavior Type" in notice.reason
    participant.vanish()


def test_messages_without_agents_do_not_count_as_agents(trainer: Learner) -> None:
    participant = Participant.at(trainer, GAME, trouble=Trouble("empty", at=3), pace=0.01)

    assert "no agent has asked" in ended(trainer, "no_agents").reason
    assert participant.end().ending == "ended"
    assert participant.player.summary.close is not None


# Calls that cannot be served ---------------------------------------------------------------------------------------


def test_a_call_of_a_player_that_never_introduced_itself_is_turned_away(trainer: Learner) -> None:
    for metadata in ((), ((SESSION_ID_METADATA, "nobody"),)):
        raw = Raw(trainer, *metadata)

        reply = raw.call(agents(0))

        assert reply.header.status == 400
        assert raw.close_code == "unexpected_message"
        assert "may have been started again" in raw.reason
        raw.close()


@pytest.mark.parametrize("named", [True, False])
def test_garbage_ends_the_session_that_sent_it(named: bool, trainer: Learner) -> None:
    metadata = ((SESSION_ID_METADATA, "garbler"),) if named else ()
    raw = Raw(trainer, *metadata)
    number = raw.shake_hands()

    reply = raw.call(b"\xff" * 64)

    assert (reply.header.status, raw.close_code) == (400, "malformed_message")
    assert left(trainer, number).code == "malformed_message"
    raw.close()


def test_garbage_from_nobody_is_turned_away(trainer: Learner) -> None:
    raw = Raw(trainer)

    assert raw.call(b"\xff\xff").header.status == 400
    assert raw.close_code == "malformed_message"
    raw.close()


@pytest.mark.parametrize("named", [True, False])
def test_two_calls_at_once_end_the_session(named: bool, trainer: Learner) -> None:
    trainer.held.add("Raw")
    metadata = ((SESSION_ID_METADATA, "twice"),) if named else ()
    raw = Raw(trainer, *metadata)
    number = raw.shake_hands()

    pending = [raw.later(agents(0)), raw.later(agents(0, announced=False))]

    assert [each.reply().header.status for each in pending] == [400, 400]
    assert "one at a time" in left(trainer, number).reason
    raw.close()


@pytest.mark.parametrize("named", [True, False])
def test_a_goodbye_while_a_call_is_pending_is_a_goodbye(named: bool, trainer: Learner) -> None:
    trainer.held.add("Raw")
    raw = Raw(trainer, *(((SESSION_ID_METADATA, "leaver"),) if named else ()))
    number = raw.shake_hands()
    pending = raw.later(agents(0))

    assert raw.call(GOODBYE).header.status == 400

    assert left(trainer, number).code == "left"
    assert pending.reply().header.status == 400
    raw.close()


def test_a_goodbye_of_a_session_that_is_over_is_no_mistake(trainer: Learner) -> None:
    raw = Raw(trainer, (SESSION_ID_METADATA, "long-gone"))

    assert raw.call(GOODBYE).header.status == 400
    assert raw.close_code == ""
    raw.close()


def test_agents_without_an_announcement_get_no_actions_as_in_ml_agents_but_a_word(trainer: Learner) -> None:
    raw = Raw(trainer)
    number = raw.shake_hands()

    reply = raw.call(message({"Ghost?team=0": [agent.AgentInfoProto(observations=[numbers([0.0])])]}))

    assert (reply.header.status, dict(reply.unity_input.rl_input.agent_actions)) == (200, {})
    assert "without brain parameters" in trouble(trainer, "unknown_behavior", number).sentence
    raw.close()


def test_a_behavior_that_is_not_configured_is_refused_with_the_learner_s_words(trainer: Learner) -> None:
    for _ in range(2):  # the second time nobody is asked
        participant = Participant.at(trainer, [Behavior("Stranger?team=3", continuous=1)])

        assert participant.end().close == (
            "behavior_not_configured",
            "the run's configuration has no behavior 'Stranger'",
        )


def test_a_behavior_with_another_spec_is_refused_with_both(trainer: Learner) -> None:
    Participant.at(trainer, [Behavior("Twofold?team=0", continuous=1)], 2).end()

    summary = Participant.at(trainer, [Behavior("Twofold?team=0", continuous=3)]).end()

    assert summary.close is not None
    assert summary.close[0] == "spec_conflict"
    assert "3 continuous actions" in summary.close[1]


@pytest.mark.parametrize(
    ("fault", "code"),
    [(Trouble("nan_reward", at=6), "not_finite"), (Trouble("oversized", at=6, size=MEBI), "message_too_large")],
    ids=lambda value: value.fault if isinstance(value, Trouble) else value,
)
def test_what_breaks_the_protocol_ends_the_session_with_its_name(fault: Trouble, code: str, trainer: Learner) -> None:
    summary = Participant.at(trainer, GAME, trouble=fault).end()

    assert (summary.ending, summary.messages) == ("ended", 6)
    assert summary.close is not None
    assert summary.close[0] == code
    assert left(trainer, number_of(summary)).code == code


def test_actions_that_the_game_could_not_receive_end_the_session_before_they_end_the_game(trainer: Learner) -> None:
    game = Behavior("Legion?team=0", agents=60, continuous=9_000, sensors=(Sensor(shape=(1,)),))
    summary = Participant.at(trainer, [game]).end()

    assert summary.close is not None
    assert summary.close[0] == "message_too_large"
    assert "4194304" in summary.close[1]
    assert left(trainer, number_of(summary)).code == "message_too_large"


def test_cameras_that_see_nothing_are_worth_a_word(trainer: Learner) -> None:
    cameras = (Sensor("Eye", "png", (3, 20, 20), shows_cue=False), Sensor("Blind", "visual", (1, 20, 20)))
    participant = Participant.at(trainer, [Behavior("Seer?team=0", continuous=1, sensors=cameras)], 15)

    summary = participant.end()

    assert summary.ending == "left"
    told = trouble(trainer, "blind_cameras", number_of(summary))
    assert "Blind" in told.sentence
    assert "Eye" not in told.sentence
    assert "-nographics" in told.sentence


# Silence -----------------------------------------------------------------------------------------------------------


def test_a_player_that_vanishes_in_its_call_is_missed_at_once(trainer: Learner) -> None:
    trainer.held.add("Gone")
    participant = Participant.at(trainer, [Behavior("Gone?team=0", continuous=1)])
    eventually(lambda: participant.player.summary.messages == 3)

    summary = participant.vanish()

    assert summary.ending == "vanished"
    assert ended(trainer, "disconnected").reason == "the connection to the simulator was lost"


def test_a_player_that_vanishes_between_two_calls_is_missed_within_seconds(trainer: Learner) -> None:
    participant = Participant.at(trainer, GAME, trouble=Trouble("vanish", at=8))

    number = number_of(participant.end())

    assert left(trainer, number).code == "disconnected"


def test_a_bridged_player_that_hangs_is_ended_after_the_step_timeout(trainer: Learner) -> None:
    participant = Participant.at(
        trainer, GAME, trouble=Trouble("hang", at=8), metadata=[(SESSION_ID_METADATA, "hanging")]
    )

    notice = trainer.wait_for(SimulatorLeft, lambda notice: notice.session_id == "hanging")

    assert notice.code == "step_timeout"
    participant.vanish()


def test_what_a_player_said_before_it_hung_is_the_reason_that_its_next_call_hears(trainer: Learner) -> None:
    pause = Trouble("pause", at=8, seconds=4 * STEP_TIMEOUT)
    participant = Participant.at(trainer, GAME, trouble=pause, metadata=[(SESSION_ID_METADATA, "slow")])

    summary = participant.end()

    assert summary.close is not None
    assert (summary.ending, summary.close[0]) == ("ended", "step_timeout")


@pytest.mark.parametrize("bridged", [False, True])
def test_a_paused_editor_is_parked_and_goes_on(bridged: bool, trainer: Learner) -> None:
    name = f"editor-{bridged}"
    metadata = [(SESSION_ID_METADATA, name), (PARKS_METADATA, "1")] if bridged else []
    participant = Participant.at(
        trainer, GAME, trouble=Trouble("pause", at=8, seconds=4 * STEP_TIMEOUT), metadata=metadata
    )
    eventually(lambda: participant.player.summary.messages == 8)
    before = participant.agent_steps

    number = number_of(participant.player.summary)
    told = trainer.wait_for(SimulatorProblem, lambda notice: (notice.number, notice.code) == (number, "parked"))
    eventually(lambda: participant.agent_steps > before + 20)

    assert "the Editor is paused" in told.sentence
    assert participant.leave().ending == "left"
    assert left(trainer, number).code == "left"


def test_a_player_that_others_wait_for_on_its_connection_is_not_parked(trainer: Learner) -> None:
    raw = Raw(trainer)
    silent = raw.shake_hands()
    raw.call(agents(0, behavior="Silent?team=0"))

    welcome = raw.call(introduction())  # of another player of the same process; it is the first one's turn

    assert left(trainer, silent).code == "step_timeout"
    assert welcome.unity_input.rl_initialization_input.seed == SEED + silent + 1
    raw.close()


def test_a_parked_player_is_missed_once_its_connection_is_gone(trainer: Learner) -> None:
    participant = Participant.at(trainer, GAME, trouble=Trouble("hang", at=8))
    eventually(lambda: participant.player.summary.messages == 8)
    number = number_of(participant.player.summary)
    trainer.wait_for(SimulatorProblem, lambda notice: (notice.number, notice.code) == (number, "parked"))

    participant.vanish()

    assert left(trainer, number).code == "disconnected"
