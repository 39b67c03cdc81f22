"""Rounds of a pool: their size, their segments and episodes, with collectors and simulators as processes."""

from collections import Counter

import pytest
import torch

from ludus.collector.messages import BehaviorAnnounced
from tests.ludus.collector.stack import SPEC, Playing, learner, player
from tests.waiting import eventually
from worker.collectors.events import EpisodesEnded, RoundCollected
from worker.experience.rollout import Rollout


@pytest.mark.parametrize("collectors", [1, 2])
def test_a_round_of_one_collector_has_exactly_its_size_and_that_of_two_is_cut_at_it(collectors: int) -> None:
    def ticks_and_collector(rollout: Rollout) -> tuple[int, int]:
        return int(rollout.ticks[0]) >> 32, int(rollout.simulators) % collectors

    own = {(index, index) for index in range(collectors)}  # ticks of each collector lie in a range of its own
    with learner(count=collectors, size=100, horizon=16) as trainer:
        players = [
            Playing(player(endpoint.address), agents)
            for endpoint, agents in zip(trainer.endpoints * 2, (3, 7, 12, 1), strict=False)
        ]
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= 12)
        # One collector may fill rounds alone while the other is slow: wait until both have delivered.
        trainer.until(
            lambda: {ticks_and_collector(each) for rollouts in trainer.rollouts.values() for each in rollouts} == own
        )
        for playing in players:
            playing.stop()

        for number in range(12):
            # Of two collectors the segment that completes the round may be longer than what it lacked.
            assert 0 <= sum(rollout.steps for rollout in trainer.rollouts[number]) - 100 < (16 if collectors > 1 else 1)
        for number in range(12):
            versions = torch.cat([rollout.versions for rollout in trainer.rollouts[number]])
            # Version r + 1 acts in round r; what a message had too much for the round before is a version older. Steps
            # of several collectors that arrive after their round was cut count into a later one, as they are.
            assert max(versions.tolist()) <= number + 1
            assert collectors > 1 or min(versions.tolist()) >= number
            assert {ticks_and_collector(rollout) for rollout in trainer.rollouts[number]} <= own
            assert collectors > 1 or (versions == number).sum() <= 3 + 7


@pytest.mark.long
@pytest.mark.parametrize("collectors", [1, 2])
@pytest.mark.parametrize("size", [1, 10])
def test_rounds_of_less_than_a_message_have_their_size_and_leave_nobody_out(size: int, collectors: int) -> None:
    with learner(count=collectors, size=size, horizon=16) as trainer:
        players = [Playing(player(endpoint.address), 12) for endpoint in trainer.endpoints * 2]
        trainer.wait_for(RoundCollected, lambda notice: notice.round >= 480 // size)
        for playing in players:
            playing.stop()

        rounds = [trainer.rollouts[number] for number in range(480 // size)]
        assert {sum(rollout.steps for rollout in rollouts) for rollouts in rounds} == {size}
        shares = Counter(int(rollout.simulators) for rollouts in rounds for rollout in rollouts)
        assert len(shares) == len(players)
        assert min(shares.values()) >= 48 // collectors


def test_segments_carry_what_followed_and_what_it_was_worth() -> None:
    with learner(size=30, horizon=8, lockstep=False) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([5, 9], 12)
        simulator.step([9], ended=[5], reward=3.0)
        simulator.receive()
        trainer.wait_for(EpisodesEnded)
        eventually(lambda: sum(rollout.steps for rollout in trainer.rollouts.get(0, [])) >= 20)
        simulator.leave()

        for rollout in trainer.rollouts[0]:
            observations, (following,) = rollout.observations[0], rollout.next_observations[0]
            # Observation 0 is the step that brought it: consecutive within the segment, and one more after it.
            first = float(observations[0, 0])
            assert observations[:, 0].tolist() == [first + step for step in range(rollout.steps)]
            assert following[0] == first + rollout.steps
            assert observations[:, 1].unique().tolist() == [following[1]]
        ended = next(rollout for rollout in trainer.rollouts[0] if rollout.endings[0] == 1)
        # 12 decisions of agent 5: a segment of 8, and one of 4 whose last step was worth 3.
        assert ended.rewards.tolist() == [1.0, 1.0, 1.0, 3.0]
        assert not ended.starts_episode[0]


def test_episodes_are_reported_with_their_undiscounted_return_and_length() -> None:
    with learner(size=1000) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1], 5)
        simulator.step([0], ended=[1, 0], reward=2.0)
        simulator.receive()

        episodes = trainer.wait_for(EpisodesEnded)
        simulator.leave()

        # The reward of the first message belongs to no decision: 4 x 1 + 2.
        assert sorted(episodes.records[["agent", "return", "length"]].tolist()) == [(0, 6, 5), (1, 6, 5)]
        assert not episodes.records["truncated"].any()


def test_a_frozen_simulator_does_not_hold_up_the_others() -> None:
    with learner(size=50, late_agents_grace=0.1) as trainer:
        frozen = player(trainer.endpoints[0].address)
        frozen.step([0, 1])
        frozen.receive()
        playing = Playing(player(trainer.endpoints[0].address), 4)

        trainer.wait_for(RoundCollected, lambda notice: notice.round == 3)
        playing.stop()
        frozen.leave()

        assert [sum(rollout.steps for rollout in trainer.rollouts[number]) for number in range(3)] == [50, 50, 50]


def test_an_agent_that_its_game_forgets_does_not_hold_up_the_round() -> None:
    with learner(size=40, late_agents_grace=0.1) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1, 2], 1)

        playing = Playing(simulator, 2)  # agent 2 is never heard of again

        trainer.wait_for(RoundCollected, lambda notice: notice.round == 2)
        playing.stop()
        assert [sum(rollout.steps for rollout in trainer.rollouts[number]) for number in range(2)] == [40, 40]


def test_a_behavior_whose_training_is_over_is_still_answered() -> None:
    with learner(size=4, lockstep=False) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1], 2)
        trainer.wait_for(BehaviorAnnounced)
        trainer.pool.grant_unrecorded(SPEC.behavior)

        simulator.play([0, 1], 50)
        simulator.leave()

        assert sum(rollout.steps for rollouts in trainer.rollouts.values() for rollout in rollouts) <= 4
