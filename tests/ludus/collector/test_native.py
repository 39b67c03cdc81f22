"""Each way to break the contract ends one session, with its name, and no other one."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import grpc
import numpy as np
import pytest

from ludus.collector.messages import SimulatorLeft
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import array_to_tensor
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.protocol.specs import spec_to_message
from tests.ludus.collector.stack import SPEC, Learner, Simulator, learner, player

MAX_BYTES = 1 << 16


@pytest.fixture(scope="module")
def trainer() -> Iterator[Learner]:
    with learner(max_message_bytes=MAX_BYTES) as running:
        running.refusals["Stranger"] = ("behavior_not_configured", "the run's configuration has no behavior 'Stranger'")
        yield running


@pytest.fixture(scope="module")
def bystander(trainer: Learner) -> Iterator[Simulator]:
    """A well-behaved simulator whose session lasts through every test of this module."""
    simulator = player(trainer.endpoints[0].address, session_id="bystander")
    simulator.play([0, 1, 2], 2)
    yield simulator
    simulator.leave()


def send_garbage(simulator: Simulator) -> None:
    simulator.send_bytes(b"\xff\xff\xff garbage")


def send_nothing_known(simulator: Simulator) -> None:
    simulator.send_bytes(b"")


def send_second_hello(simulator: Simulator) -> None:
    simulator.send(simulator.make_hello())


def send_too_large(simulator: Simulator) -> None:
    simulator.send_bytes(bytes(MAX_BYTES + 1))


def send_conflicting_announcement(simulator: Simulator) -> None:
    other = BehaviorSpec(SPEC.name, (ObservationSpec((5,)),), SPEC.actions)
    simulator.send(pb.Announce(behaviors=[spec_to_message(other)]))


def send_unconfigured_behavior(simulator: Simulator) -> None:
    simulator.send(pb.Announce(behaviors=[spec_to_message(BehaviorSpec("Stranger", SPEC.observations, SPEC.actions))]))


def send_bad_spec(simulator: Simulator) -> None:
    simulator.send(
        pb.Announce(behaviors=[pb.BehaviorSpec(name="NoObservations", actions=pb.ActionSpec(continuous_size=1))])
    )


def invalid_signal(change: Callable[[pb.Step], object]) -> Callable[[Simulator], None]:
    """Send a step of agents 0 and 1 with one thing changed."""

    def send(simulator: Simulator) -> None:
        step = simulator.make_step([0, 1])
        change(step)
        simulator.send(step)

    return send


def spoil_observation(step: pb.Step) -> None:
    """Make a mistake that the codec finds; the others are in its tests."""
    values = np.full((2, 4), np.nan, np.float32)
    step.behaviors[0].decisions.observations[0].CopyFrom(array_to_tensor(values))


def rename(step: pb.Step) -> None:
    step.behaviors[0].behavior = "Nobody"


def ask_in_the_past(step: pb.Step) -> None:
    step.step_id = 0


def invent_reset(step: pb.Step) -> None:
    step.reset_id = 3


def report_without_key(step: pb.Step) -> None:
    step.stats.add(key="", value=1.0)


MISTAKES = {
    "garbage bytes": (send_garbage, "malformed_message"),
    "an empty message": (send_nothing_known, "malformed_message"),
    "a second hello": (send_second_hello, "unexpected_message"),
    "an oversized message": (send_too_large, "message_too_large"),
    "a spec that contradicts another simulator's": (send_conflicting_announcement, "spec_conflict"),
    "a behavior that is not configured": (send_unconfigured_behavior, "behavior_not_configured"),
    "a malformed spec": (send_bad_spec, "bad_spec"),
    "NaN in an observation": (invalid_signal(spoil_observation), "not_finite"),
    "a behavior that was not announced": (invalid_signal(rename), "unknown_behavior"),
    "a step id that does not grow": (invalid_signal(ask_in_the_past), "step_order"),
    "a reset that was never issued": (invalid_signal(invent_reset), "step_order"),
    "a stat without a key": (invalid_signal(report_without_key), "bad_stat"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_ends_its_own_session_with_its_name(trainer: Learner, bystander: Simulator, mistake: str) -> None:
    spoil, code = MISTAKES[mistake]
    culprit = player(trainer.endpoints[0].address)
    bystander.play([0, 1, 2], 1)

    spoil(culprit)

    assert culprit.closed().code == code
    left = trainer.wait_for(SimulatorLeft, lambda notice: notice.session_id == culprit.session_id)
    assert (left.code, bool(left.reason)) == (code, True)
    bystander.play([0, 1, 2], 2)
    culprit.leave()


@pytest.mark.long
def test_asking_again_before_the_answer_ends_the_session() -> None:
    with learner(lockstep=False, size=2) as trainer:
        culprit = player(trainer.endpoints[0].address)
        culprit.play([0, 1], 1)
        culprit.step([0, 1])  # held: the round of 2 is used up

        culprit.step([0, 1])

        assert culprit.closed().code == "decision_pending"


def test_a_step_before_hello_ends_the_session(trainer: Learner, bystander: Simulator) -> None:
    culprit = Simulator(trainer.endpoints[0].address)

    culprit.step([0])

    assert culprit.closed(ends=False).code == "step_before_hello", "the stream ends, though its client does nothing"
    left = trainer.wait_for(SimulatorLeft, lambda notice: notice.code == "step_before_hello")
    assert (left.session_id, left.number) == ("", -1)
    bystander.play([0, 1, 2], 1)
    culprit.leave()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"protocol_version": 2}, "protocol_version"),
        ({"session_id": ""}, "bad_hello"),
        ({"session_id": "a b"}, "bad_hello"),
        ({"session_id": "x" * 65}, "bad_hello"),
        ({"client": "x" * 101}, "bad_hello"),
    ],
)
def test_a_malformed_hello_is_refused(
    trainer: Learner, bystander: Simulator, change: dict[str, str | int], code: str
) -> None:
    culprit = Simulator(trainer.endpoints[0].address)
    hello = culprit.make_hello()
    for name, value in change.items():
        setattr(hello, name, value)

    culprit.send(hello)

    assert culprit.closed().code == code
    bystander.play([0, 1, 2], 1)
    culprit.leave()


def test_a_conflicting_spec_is_described_with_both_specs(trainer: Learner, bystander: Simulator) -> None:
    culprit = Simulator(trainer.endpoints[0].address)

    culprit.send(culprit.make_hello(replace(SPEC, actions=ActionSpec(3))))
    close = culprit.closed()

    assert close.code == "spec_conflict"
    assert "3 continuous" in close.reason
    assert "branches (2,)" in close.reason
    bystander.play([0, 1, 2], 1)
    culprit.leave()


def test_teams_of_one_behavior_share_its_spec(trainer: Learner, bystander: Simulator) -> None:
    simulator = Simulator(trainer.endpoints[0].address)

    assert simulator.hello(replace(SPEC, name="Cart?team=1")).HasField("welcome")

    bystander.play([0, 1, 2], 1)
    simulator.leave()


def test_a_message_far_beyond_the_limit_ends_only_its_own_session(trainer: Learner, bystander: Simulator) -> None:
    culprit = player(trainer.endpoints[0].address)

    culprit.send_bytes(bytes(4 << 20))

    left = trainer.wait_for(SimulatorLeft, lambda notice: notice.session_id == culprit.session_id)
    assert left.code == "disconnected"
    with pytest.raises(grpc.RpcError) as raised:
        culprit.receive()
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    bystander.play([0, 1, 2], 1)
    culprit.leave()
