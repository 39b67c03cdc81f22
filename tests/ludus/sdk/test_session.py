"""The session remembers who waits for which step, so that late and partial answers find the right agents."""

import time

import numpy as np
import pytest

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import ActionBatch
from ludus.protocol.codec import encode_actions
from ludus.protocol.codes import ProtocolError
from ludus.protocol.environment_parameters import Uniform
from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk.session import Session

WALKER = BehaviorSpec("Walker", (ObservationSpec((1,)),), ActionSpec(1))
SEER = BehaviorSpec("Seer", (ObservationSpec((1,)),), ActionSpec(1))


@pytest.fixture
def session() -> Session:
    return Session([WALKER])


def ask(session: Session, *agents: int, ending: tuple[int, ...] = ()) -> list[pb.ConnectRequest]:
    builder = session.new_step()
    for agent in ending:
        builder.end_episode(agent, [0])
    for agent in agents:
        builder.request_decision(agent, [agent])
    return session.requests(builder)


def answer(session: Session, step: int, *agents: int, count: int | None = None) -> Actions:
    """Answer some agents by name, or all of a step's by their count."""
    ids = np.array(agents, np.int32) if count is None else None
    values = np.arange(len(agents) if count is None else count, dtype=np.float32)[:, None]
    message = encode_actions(step, [ActionBatch("Walker", ids, values, np.zeros((len(values), 0), np.int32))])
    return session.actions(message)


def answered(actions: Actions) -> list[tuple[int, float]]:
    return [(action.agent, float(action.continuous[0])) for action in actions]


def test_steps_are_counted_from_one(session: Session) -> None:
    assert [request.step.step_id for request in ask(session, 1)] == [1]
    assert [request.step.step_id for request in ask(session, 2)] == [2]


def test_nothing_is_sent_when_nothing_happened(session: Session) -> None:
    assert session.requests(session.new_step()) == []


def test_a_report_alone_is_sent(session: Session) -> None:
    builder = session.new_step()
    builder.report("Score", 1)

    (request,) = session.requests(builder)

    assert request.step.stats[0].key == "Score"
    assert session.idle


def test_an_answer_without_names_is_for_the_agents_in_their_order(session: Session) -> None:
    ask(session, 5, 3)

    assert answered(answer(session, 1, count=2)) == [(5, 0), (3, 1)]
    assert session.idle


def test_a_step_can_be_answered_in_parts(session: Session) -> None:
    ask(session, 1, 2, 3)

    assert answered(answer(session, 1, 3, 1)) == [(3, 0), (1, 1)]
    assert not session.idle
    assert answered(answer(session, 1, 2)) == [(2, 0)]
    assert session.idle


def test_several_steps_can_be_in_flight(session: Session) -> None:
    ask(session, 1, 2)
    ask(session, 3)

    assert answered(answer(session, 2, count=1)) == [(3, 0)]
    assert answered(answer(session, 1, count=2)) == [(1, 0), (2, 1)]


def test_an_answer_that_crosses_an_agents_end_is_left_out(session: Session) -> None:
    ask(session, 1, 2)
    ask(session, 1, ending=(1,))

    assert answered(answer(session, 1, count=2)) == [(2, 1)]
    assert answered(answer(session, 2, count=1)) == [(1, 0)]
    assert session.idle


def test_a_void_step_is_forgotten(session: Session) -> None:
    ask(session, 1)
    ask(session, ending=(1,))

    assert session.idle
    assert session._in_flight == {}
    assert session._unanswered == {}


def test_a_reset_makes_every_pending_decision_void(session: Session) -> None:
    ask(session, 1)
    session.reset(pb.Reset(reset_id=4))

    assert session.idle
    (request,) = ask(session, 1)
    assert request.step.reset_id == 4
    assert answered(answer(session, 2, count=1)) == [(1, 0)]


def test_an_answer_for_too_many_agents_is_a_mistake_of_the_server(session: Session) -> None:
    ask(session, 1, 2)

    with pytest.raises(ProtocolError, match="asked for 2 agents of 'Walker', not 3"):
        answer(session, 1, count=3)


def test_a_new_behavior_is_announced_before_its_first_step(session: Session) -> None:
    builder = session.new_step()
    builder.announce(SEER)
    builder.request_decision(1, [0], behavior="Seer")

    kinds = [request.WhichOneof("message") for request in session.requests(builder)]

    assert kinds == ["announce", "step"]
    assert session.behaviors == [WALKER, SEER]


def test_decisions_and_episodes_are_counted(session: Session) -> None:
    ask(session, 1, 2)
    answer(session, 1, count=2)
    ask(session, 1, ending=(1, 2))

    assert (session.decisions, session.episodes) == (3, 2)


def test_a_game_always_sees_the_newest_parameters(session: Session) -> None:
    builder = session.new_step()
    assert dict(builder.parameters) == {}
    wind = pb.Sampler(seed=1, uniform=pb.UniformDistribution(min_value=2, max_value=3))
    welcome = pb.Welcome(simulator_number=4, environment_parameters={"wind": 0.5, "mass": 1}, samplers={"wind": wind})
    session.welcome(welcome)
    assert dict(session.new_step().parameters) == {"wind": 0.5, "mass": 1.0}
    assert session.new_step().parameters.samplers == {"wind": Uniform(2.0, 3.0, 1)}

    ask(session, 1)
    builder = session.new_step()
    session.actions(pb.Actions(step_id=1, environment_parameters={"wind": 7, "mass": 2}))
    assert dict(builder.parameters.draw()) == {"wind": 7.0, "mass": 2.0}, "the sampler is gone"

    session.actions(pb.Actions(step_id=1))
    assert dict(session.new_step().parameters) == {"wind": 7.0, "mass": 2.0}, "an answer without news changes nothing"
    session.reset(pb.Reset(reset_id=1, environment_parameters={"mass": 3}))
    assert dict(session.new_step().parameters) == {"mass": 3.0}


def test_the_first_step_after_an_answer_says_how_long_the_game_took(session: Session) -> None:
    (before,) = ask(session, 1)
    answer(session, 1, count=1)
    begun = time.monotonic()
    time.sleep(0.05)  # allow: sleep, because this game takes so long for a step
    (after,) = ask(session, 1)
    (later,) = ask(session, 2)

    assert before.step.game_seconds == 0, "it began without an answer"
    assert 0.05 <= after.step.game_seconds <= time.monotonic() - begun + 0.01
    assert later.step.game_seconds == 0, "no answer came before it"
