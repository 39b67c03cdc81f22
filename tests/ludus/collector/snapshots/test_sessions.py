"""What collectors hand over into a checkpoint, and who goes on from it."""

from typing import Any

import numpy as np
import pytest

from ludus.collector.agents import IDLE, WAITING
from ludus.collector.messages import SimulatorConnected, SimulatorProblem
from ludus.collector.snapshots import state as session_snapshots
from ludus.collector.step_quota import StepQuota
from ludus.protocol import simulation_pb2 as pb
from tests.ludus.collector.stack import SPEC, Learner, Simulator, learner
from worker.collectors import step_quota
from worker.collectors.events import EpisodesEnded, HandedOver


def resuming(address: str, session_id: str) -> tuple[Simulator, pb.Welcome]:
    """Return a simulator that says that it resumes, and its welcome."""
    simulator = Simulator(address, session_id)
    hello = simulator.make_hello(SPEC)
    hello.resumes = True
    simulator.send(hello)
    return simulator, simulator.receive().welcome


def tell(simulator: Simulator, position: bytes) -> int:
    """Answer Save; return its number."""
    message = simulator.receive()
    assert message.HasField("save"), message
    saved = pb.Saved(save_id=message.save.save_id, position=position)
    simulator.send_bytes(pb.ConnectRequest(saved=saved).SerializeToString())
    return int(message.save.save_id)


def handed_over(them: Learner, patience: float) -> session_snapshots.State:
    """Return what the one collector hands over."""
    before = len(them.heard(HandedOver))
    assert them.pool.hold(patience) == {0}
    them.until(lambda: sum(isinstance(notice, HandedOver) for notice in them.events) > before)
    return them.heard(HandedOver)[-1].state


def kept_state(steps: int = 4) -> session_snapshots.State:
    """Return what is handed over of a simulator of three agents after some steps, one of them between episodes."""
    with learner(horizon=16) as them:
        simulator, _ = resuming(them.endpoints[0].address, "sim")
        simulator.play([1, 2, 3], steps)
        simulator.step([1, 2], ended=[3])
        assert simulator.receive().HasField("actions")
        assert them.pool.hold(5.0) == {0}
        simulator.step([1, 2])
        tell(simulator, b"here")
        them.wait_for(HandedOver)
        simulator.leave()
        return them.heard(HandedOver)[-1].state


def test_a_tree_comes_back_from_its_archive_as_it_was() -> None:
    tree = {"a": [1, 2.5, None, "x", {"b": np.arange(6).reshape(2, 3)}], "big": 2**127 + 1, "none": np.zeros((0, 4))}

    again = session_snapshots.unpack(session_snapshots.pack(tree))

    assert again["a"][:4] == tree["a"][:4]  # type: ignore[index]
    assert np.array_equal(again["a"][4]["b"], np.arange(6).reshape(2, 3))
    assert again["big"] == 2**127 + 1
    assert again["none"].shape == (0, 4)


def test_a_simulator_at_rest_is_handed_over_with_its_agents_and_its_word() -> None:
    state = kept_state(steps=4)

    (session,) = state["sessions"]
    agents = session["agents"]["Cart"]
    assert session["position"].tobytes() == b"here"
    assert agents["records"][:, 1].tolist() == [1, 2, 3]
    assert agents["state"].tolist() == [WAITING, WAITING, IDLE]
    assert agents["decisions"][:2].tolist() == [5, 5], "steps of the running episodes"
    assert agents["returns"][:2].tolist() == [5.0, 5.0]
    assert len(agents["steps_of_segments"][0]) == 5 + 5, "open segments of two agents"


def test_nobody_is_answered_between_hold_and_release() -> None:
    with learner() as them:
        simulator, _ = resuming(them.endpoints[0].address, "sim")
        simulator.play([1], 2)
        assert them.pool.hold(5.0) == {0}
        simulator.step([1])

        tell(simulator, b"")
        them.wait_for(HandedOver)
        them.pool.release()

        assert simulator.receive().HasField("actions"), "the next message after Save: nothing came before"


def test_a_simulator_that_does_not_resume_is_not_asked_and_not_waited_for() -> None:
    with learner() as them:
        simulator = Simulator(them.endpoints[0].address)
        simulator.hello(SPEC)
        simulator.play([1], 2)

        state = handed_over(them, patience=15.0)
        them.pool.release()
        simulator.play([1], 2)  # fails at a Save

        assert state["sessions"] == []
        assert state["lanes"]["Cart"]["rng"]["bit_generator"] == "PCG64"


def test_one_that_computes_for_too_long_is_left_out() -> None:
    with learner() as them:
        simulator, _ = resuming(them.endpoints[0].address, "sim")
        simulator.play([1], 2)  # it has its answer, and is silent

        state = handed_over(them, patience=0.2)
        them.pool.release()
        simulator.play([1], 2)

        assert state["sessions"] == []


@pytest.mark.parametrize("save_id", [0, 7])
def test_an_answer_to_a_question_that_was_not_asked_ends_the_session(save_id: int) -> None:
    with learner() as them:
        simulator, _ = resuming(them.endpoints[0].address, "sim")
        simulator.send_bytes(pb.ConnectRequest(saved=pb.Saved(save_id=save_id)).SerializeToString())

        assert simulator.closed().code == "unexpected_message"


def resumed_step(simulator: Simulator, agents: list[int]) -> None:
    step = simulator.make_step(agents, reward=100.0)
    step.resumed = True
    simulator.send(step)


def restored(state: session_snapshots.State) -> Any:
    """A learner whose collectors go on from this state."""
    return learner(size=48, horizon=16, kept=[state])


def test_episodes_go_on_where_the_simulator_comes_back() -> None:
    state = kept_state(steps=4)
    with restored(state) as them:
        simulator, welcome = resuming(them.endpoints[0].address, "sim")
        assert welcome.position == b"here"
        resumed_step(simulator, [1, 2])
        assert simulator.receive().HasField("actions")
        simulator.step([2], ended=[1])

        ended = them.wait_for(EpisodesEnded)
        assert ended.records["return"].tolist() == [6.0], (
            "five rewards of then and one of now; not that of the step in between"
        )
        assert ended.records["length"].tolist() == [6]
        simulator.leave()


def test_one_that_says_nothing_of_going_on_begins_anew() -> None:
    state = kept_state(steps=4)
    with restored(state) as them:
        simulator, welcome = resuming(them.endpoints[0].address, "sim")
        assert welcome.HasField("position")
        simulator.play([1], 2)
        simulator.step([], ended=[1])

        assert them.wait_for(EpisodesEnded).records["length"].tolist() == [2]
        simulator.leave()
        again, welcome = resuming(them.endpoints[0].address, "sim")
        assert not welcome.HasField("position"), "it has played on since"
        again.leave()


def test_one_that_asks_for_other_agents_begins_anew_and_is_told_of() -> None:
    state = kept_state(steps=4)
    with restored(state) as them:
        simulator, _ = resuming(them.endpoints[0].address, "sim")
        resumed_step(simulator, [1, 2, 3])
        assert simulator.receive().HasField("actions")
        simulator.step([], ended=[1, 2, 3])

        assert them.wait_for(SimulatorProblem).code == "not_resumed"
        assert them.wait_for(EpisodesEnded).records["length"].tolist() == [1, 1, 1]
        simulator.leave()


def test_others_get_numbers_of_their_own() -> None:
    state = kept_state(steps=1)
    with restored(state) as them:
        stranger, other = resuming(them.endpoints[0].address, "stranger")
        assert not other.HasField("position")
        simulator, own = resuming(them.endpoints[0].address, "sim")

        assert own.simulator_number == state["sessions"][0]["number"]
        assert other.simulator_number > own.simulator_number
        them.until(lambda: len(them.heard(SimulatorConnected)) == 2)
        stranger.leave()
        simulator.leave()


def test_what_was_answered_before_counts_in_its_round() -> None:
    quota = StepQuota()
    quota.grant(3, 10, size=10)

    assert quota.take_restored(3, 4)
    assert quota.left == 6
    assert not quota.take_restored(3, 7), "no room"
    assert not quota.take_restored(2, 1), "that round is over"
    assert quota.take_restored(4, 2)
    assert quota.overdraft[4] == 2


def test_delivered_steps_of_a_former_attempt_complete_their_rounds() -> None:
    quota = step_quota.StepQuota()
    quota.add(0)
    quota.restore(3, [(3, 4), (4, 2)], [(0, 4, 2)])

    (grant,) = quota.grant(3, 10)
    assert grant.steps == 6, "of ten, four are there"
    quota.delivered(0, 3, 6)
    assert quota.collected() == (3, 10)
    (grant,) = quota.grant(4, 10)
    assert grant.steps == 10, "the collector knows of the two that it answered in advance"
    assert quota.delivered(0, 4, 8) == 4
    assert quota.collected() == (4, 10)


def test_segments_of_a_round_that_is_over_are_dropped_and_their_episodes_go_on() -> None:
    state = kept_state(steps=4)
    agents = state["sessions"][0]["agents"]["Cart"]
    agents["records"][:, 6] -= 1  # of the round before
    with restored(state) as them:
        simulator, _ = resuming(them.endpoints[0].address, "sim")
        resumed_step(simulator, [1, 2])
        assert simulator.receive().HasField("actions")
        simulator.step([], ended=[1, 2])

        assert them.wait_for(EpisodesEnded).records["length"].tolist() == [6, 6]
        them.until(lambda: len(them.delivered.get("Cart", [])) == 2)
        assert [rollout.steps for rollout in them.delivered["Cart"]] == [1, 1]
        simulator.leave()
