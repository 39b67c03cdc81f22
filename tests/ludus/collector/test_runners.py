"""Runners against scripted simulators: rounds have exact sizes, and no agent waits for what cannot come."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ludus.collector.exploration import PinkNoise
from tests.examples import examples
from tests.ludus.collector.world import World, playing


def test_a_round_has_exactly_its_size_though_messages_do_not_divide_it() -> None:
    world = playing(size=20)

    reports = []
    for _ in range(4):
        world.step(0, decide=range(12))
        reports.append(world.run())
        if world.members[0].states("waiting"):
            break

    # 20 = 12 + 8: the second message is answered whole, 4 of its decisions are borrowed from round 1. The third waits.
    assert len(reports) == 3
    assert reports[-1].deliver
    assert world.delivered[0] == 20
    assert world.quota.overdraft[1] == 4
    world.grant(1)
    assert world.quota.left == 20 - 4 - 12


def test_a_round_that_has_ended_is_answered_no_more_and_its_steps_are_delivered_as_they_return() -> None:
    world = playing(2, size=20)
    for simulator in (0, 1):
        world.step(simulator, decide=range(4))
    world.run()
    world.step(0, decide=range(4))

    world.quota.end(0)  # others completed it

    assert world.run().deliver
    assert world.members[0].states("waiting") == list(range(4))
    assert world.delivered[0] == 4
    world.step(1, decide=range(4))
    assert world.run().deliver
    assert world.delivered[0] == 8
    world.grant(1)
    assert world.members[0].states("acting") == world.members[1].states("acting") == list(range(4))
    assert world.quota.left == 20 - 8


def test_a_quota_that_is_extended_goes_on_with_the_same_round() -> None:
    world = World(size=20)
    world.join(0)
    world.grant(0, 4)
    world.play(0, decide=range(4))
    world.step(0, decide=range(4))
    assert world.run().deliver, "the quota is used"
    assert world.members[0].states("waiting") == list(range(4))

    world.grant(0, 8)

    assert world.members[0].states("acting") == list(range(4))
    assert (world.quota.left, world.quota.outstanding[0]) == (4, 4)


def test_a_held_message_does_not_hold_the_simulator_that_owes_a_step() -> None:
    world = playing(size=3)
    world.play(0, decide=[1, 2])
    world.play(0, decide=[3])

    # Permits are used up, but the game cannot bring agents 1 and 2 back before agent 3 moves again.
    world.play(0, decide=[3])

    assert world.members[0].states("acting") == [1, 2, 3]
    world.play(0, decide=[1, 2])
    assert world.delivered[0] == 3
    assert world.members[0].states("waiting") == [1, 2]


def test_an_overdraft_larger_than_the_quota_does_not_hold_the_simulator_that_owes_a_step_of_it() -> None:
    world = playing(size=2)
    world.play(0, decide=[1, 2, 3])
    world.play(0, decide=[1, 2])  # agent 3 owes a step of round 1
    assert world.members[0].states("waiting") == [1, 2]

    world.quota.grant(1, 0, size=2)
    world.run()

    assert world.members[0].states("acting") == [1, 2, 3]


def test_weights_of_the_round_are_waited_for() -> None:
    world = World()
    world.join(0)
    world.runner.required_version = 8  # the world's policy is version 7
    world.step(0, decide=[1])

    world.grant(0)
    assert world.members[0].states("waiting") == [1]

    world.runner.version = 8
    world.runner.run()
    assert world.members[0].states("acting") == [1]


def test_steps_of_a_simulator_that_left_are_collected_from_others() -> None:
    world = playing(2, size=10)
    for _ in range(2):
        world.step(0, decide=[1, 2])
        world.step(1, decide=[1])
        world.run()

    world.leave(0)  # it had 2 complete steps and 2 answered ones
    for _ in range(30):
        if world.members[1].states("waiting"):
            break
        world.play(1, decide=[1])

    assert world.delivered[0] == 10
    assert {segment.simulator for segment in world.segments} == {1}


def test_pink_noise_goes_on_with_the_agent_whoever_asks_beside_it() -> None:
    world = playing(2, size=10_000)
    world.runner.noise = PinkNoise(1)
    pulls = []
    for _ in range(500):
        world.step(0, decide=[1])
        world.step(1, decide=[1, 2])
        world.run()
        pulls.append(world.policy.driven_by[-1])

    series = np.array([pull[:, 0] for pull in pulls if pull is not None])
    assert series.shape == (500, 3)
    correlations = [np.corrcoef(series[:-1, agent], series[1:, agent])[0, 1] for agent in range(3)]
    assert min(correlations) > 0.5, "pink noise: 0.8; white noise, and that of other agents: 0"


def test_without_pink_noise_the_policy_draws_its_own() -> None:
    world = playing(size=100)
    world.play(0, decide=[1])

    assert world.policy.driven_by == [None]


class LaneMachine(RuleBasedStateMachine):
    """Random simulators, messages, departures, late agents and grants. `World` checks every segment as it leaves."""

    @initialize(
        size=st.integers(1, 25),
        horizon=st.integers(1, 7),
        rows=st.integers(1, 4),
        recurrent=st.booleans(),
        grouped=st.booleans(),
    )
    def begin(self, size: int, horizon: int, rows: int, recurrent: bool, grouped: bool) -> None:
        self.world = World(size=size, horizon=horizon, rows=rows, recurrent=recurrent, grouped=grouped)
        self.round = -1
        self.next_simulator = 0

    @rule()
    def join(self) -> None:
        if len(self.world.members) < 4:
            self.world.join(self.next_simulator)
            self.next_simulator += 1

    @precondition(lambda self: self.world.members)
    @rule(data=st.data(), truncate=st.booleans(), turn=st.booleans())
    def step(self, data: st.DataObject, truncate: bool, turn: bool) -> None:
        simulator = data.draw(st.sampled_from(sorted(self.world.members)))
        member = self.world.members[simulator]
        known = member.states("acting") + member.states("waiting")
        end = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=3)) if known else []
        may_decide = sorted(set(range(6)) - set(member.states("waiting")) | set(end))
        decide = data.draw(st.lists(st.sampled_from(may_decide), unique=True, max_size=6)) if may_decide else []
        # A step's answer names its agents by order, unless some ended meanwhile; keep the account simple.
        if decide or end:
            self.world.step(simulator, decide=decide, end=end, truncate=truncate)
        if turn:
            self.world.run()

    @rule()
    def turn(self) -> None:
        self.world.run()

    @precondition(lambda self: self.round < 0 or self.world.delivered[self.round] >= self.world.size)
    @rule()
    def grant(self) -> None:
        self.round += 1
        self.world.grant(self.round)

    @precondition(lambda self: len(self.world.members) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.world.leave(data.draw(st.sampled_from(sorted(self.world.members))))

    @precondition(lambda self: self.world.members and self.world.quota.left <= 0 and self.world.runner.waiting)
    @rule(data=st.data())
    def straggle(self, data: st.DataObject) -> None:
        member = self.world.members[data.draw(st.sampled_from(sorted(self.world.members)))]
        self.world.runner.release_late_agents([member.agent_index])
        self.world.run()

    def teardown(self) -> None:
        """Play on without further departures: the round must complete, with exactly its size."""
        if not hasattr(self, "world"):
            return
        world = self.world
        if self.round < 0:
            self.round = 0
            world.grant(0)
        if not world.members:
            world.join(self.next_simulator)
        for _ in range(200):
            world.run()
            if world.delivered[self.round] >= world.size:
                break
            for simulator, member in world.members.items():
                acting = member.states("acting")
                idle = sorted(set(range(6)) - set(acting) - set(member.states("waiting")))
                world.step(simulator, decide=acting or idle[:2])
        world.run()
        for number in range(self.round + 1):
            assert world.delivered[number] == world.size, f"round {number}"
        assert world.quota.outstanding.total() == sum(len(member.states("acting")) for member in world.members.values())
        segments = world.recorder.segments
        used = segments.blocks_in_use(np.arange(len(world.recorder.agents.state)))
        assert len({*segments.blocks, *used}) == len(segments.blocks) + len(used) == world.arena.layout.blocks, (
            "no block is lost"
        )
        world.arena.close()


LaneMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestLaneMachine = LaneMachine.TestCase
