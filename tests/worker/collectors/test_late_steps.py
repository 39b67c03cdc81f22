"""`late_steps: wait`: rounds of a pool that no step enters too old, with collectors and simulators as processes."""

import os
import signal

import pytest

from ludus.collector.messages import SimulatorLeft, TimesMeasured
from tests.ludus.collector.stack import Learner, Playing, Simulator, learner, pids_of, player
from worker.collectors.events import CollectorDied, Endpoint, RoundCollected

pytestmark = pytest.mark.long


def lag_of(trainer: Learner, number: int) -> int:
    """Return the age of the oldest step of a round when it is learned from: version r + 1 acts in round r."""
    return max(number + 1 - int(rollout.versions.min()) for rollout in trainer.rollouts[number])


def round_begins(trainer: Learner, number: int) -> None:
    trainer.wait_for(RoundCollected, lambda notice: notice.round >= number)


def is_held(trainer: Learner) -> None:
    """Wait until agents have waited for the steps of others for half of a period, in which no round began."""

    def held() -> bool:
        begun = max(i for i, event in enumerate(trainer.events) if isinstance(event, RoundCollected))
        times = [event for event in trainer.events[begun:] if isinstance(event, TimesMeasured)]
        return any(measured.stragglers + measured.learner > measured.seconds / 2 for measured in times)

    trainer.until(held)


def silent_player(trainer: Learner) -> Simulator:
    """Return a simulator of two agents that has its first actions, and never sends the next step."""
    simulator = player(trainer.endpoints[0].address)
    simulator.step([0, 1])
    simulator.receive()
    return simulator


@pytest.mark.parametrize("collectors", [1, 2])
@pytest.mark.parametrize("size", [10, 100])
def test_no_step_is_older_than_the_limit_and_every_round_has_its_size_at_least(size: int, collectors: int) -> None:
    with learner(count=collectors, size=size, horizon=16, ahead=1) as trainer:
        players = [
            Playing(player(endpoint.address), agents)
            for endpoint, agents in zip(trainer.endpoints * 2, (3, 7, 12, 1), strict=False)
        ]
        round_begins(trainer, 12)
        for playing in players:
            playing.stop()

        assert max(lag_of(trainer, number) for number in range(12)) <= 1
        assert all(sum(rollout.steps for rollout in trainer.rollouts[number]) >= size for number in range(12))


@pytest.mark.parametrize("ahead", [None, 1])
def test_a_silent_simulator_is_waited_for_before_its_step_is_too_old(ahead: int | None) -> None:
    with learner(size=50, late_agents_grace=0.1, ahead=ahead) as trainer:
        silent = silent_player(trainer)
        playing = Playing(player(trainer.endpoints[0].address), 4)
        if ahead is None:
            round_begins(trainer, 4)
        else:
            round_begins(trainer, 0)  # its steps may still come in the next round
            is_held(trainer)
            assert trainer.heard(RoundCollected)[-1].round == 0

        silent.play([0, 1], 40)
        round_begins(trainer, 6)
        playing.stop()

        oldest = max(lag_of(trainer, number) for number in range(6))
        assert oldest <= 1 if ahead else oldest >= 4, "and without it they count as they come"


def test_a_silent_simulator_that_leaves_is_waited_for_no_longer() -> None:
    with learner(size=50, late_agents_grace=0.1, ahead=1) as trainer:
        silent = silent_player(trainer)
        playing = Playing(player(trainer.endpoints[0].address), 4)
        round_begins(trainer, 0)
        is_held(trainer)

        silent.leave()

        trainer.wait_for(SimulatorLeft)
        round_begins(trainer, 4)
        playing.stop()
        assert max(lag_of(trainer, number) for number in range(4)) <= 1


def test_the_last_simulator_of_a_collector_that_leaves_does_not_hold_up_the_others() -> None:
    with learner(count=2, size=50, ahead=1) as trainer:
        silent = silent_player(trainer)
        playing = Playing(player(trainer.endpoints[1].address), 4)
        trainer.until(lambda: sum(rollout.steps for rollout in trainer.rollouts.get(0, [])) >= 50)
        assert not trainer.heard(RoundCollected), "what the other collector owes is waited for"

        silent.leave()

        round_begins(trainer, 4)
        playing.stop()


def test_an_agent_that_its_game_forgets_does_not_hold_up_the_rounds() -> None:
    with learner(size=40, late_agents_grace=0.1, ahead=1) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1, 2], 1)

        playing = Playing(simulator, 2)  # agent 2 is never heard of again

        round_begins(trainer, 4)
        playing.stop()
        assert max(lag_of(trainer, number) for number in range(4)) <= 1


def test_agents_of_one_game_that_act_in_turns_come_from_one_round_to_the_next() -> None:
    with learner(size=20, ahead=1) as trainer:
        simulator = player(trainer.endpoints[0].address)
        for _ in range(60):  # the step of one returns only after the other one has acted
            simulator.play([0], 1)
            simulator.play([1], 1)

        round_begins(trainer, 4)
        assert max(lag_of(trainer, number) for number in range(4)) <= 1


@pytest.mark.parametrize("freezes", [False, True])
def test_a_collector_that_is_killed_costs_its_partial_segments_and_holds_up_no_round(freezes: bool) -> None:
    with learner(count=2, size=200, horizon=16, ahead=1) as trainer:
        lost = Playing(player(trainer.endpoints[0].address), 5)
        going_on = Playing(player(trainer.endpoints[1].address), 5)
        round_begins(trainer, 1)
        victim = pids_of(trainer.pool)[0]
        if freezes:
            os.kill(victim, signal.SIGSTOP)
            is_held(trainer)

        os.kill(victim, signal.SIGKILL)

        trainer.wait_for(CollectorDied)
        listening = trainer.wait_for(Endpoint)
        lost.stop()
        back = Playing(player(listening.address), 5)
        rounds = len(trainer.heard(RoundCollected))
        round_begins(trainer, rounds + 4)
        for playing in (going_on, back):
            playing.stop()
        assert max(lag_of(trainer, number) for number in range(rounds + 4)) <= 1
