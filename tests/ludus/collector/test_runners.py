"""Runner and recorder against scripted simulators: what is recorded is what was lived, and rounds have exact sizes."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ludus.collector.exploration import PinkNoise
from ludus.collector.segments import SegmentEnd
from ludus.protocol.codes import CloseCode, ProtocolError
from tests.examples import examples
from tests.ludus.collector.world import FIRST_TICK, World
from tests.segments import columns_of
from worker.experience.rollout import gather


def test_an_episode_is_recorded_with_its_rewards_and_its_final_observation() -> None:
    world = World()
    world.join(0)
    world.grant(0)
    for _ in range(3):
        world.step(0, decide=[4])
        world.run()

    world.step(0, end=[4])
    world.run()

    (segment,) = world.segments
    assert (segment.length, segment.ending, segment.sequence, segment.episode) == (3, SegmentEnd.TERMINATED, 0, 0)
    assert segment.starts_episode


def test_a_truncated_episode_is_not_a_terminated_one() -> None:
    world = World()
    world.join(0)
    world.grant(0)
    world.step(0, decide=[1, 2])
    world.run()

    world.step(0, end=[1], truncate=True)
    world.step(0, end=[2])
    world.run()

    assert [segment.ending for segment in world.segments] == [SegmentEnd.TRUNCATED, SegmentEnd.TERMINATED]


def test_an_id_ends_and_begins_in_one_message() -> None:
    world = World()
    world.join(0)
    world.grant(0)
    world.step(0, decide=[1])
    world.run()

    world.step(0, decide=[1], end=[1])
    world.run()
    world.step(0, end=[1])
    world.run()

    assert [(segment.episode, segment.length) for segment in world.segments] == [(0, 1), (1, 1)]


def test_a_segment_is_cut_at_the_horizon_and_goes_on_with_the_observation_at_hand() -> None:
    world = World(horizon=2, rows=3)
    world.join(0)
    world.grant(0)

    for _ in range(5):
        world.step(0, decide=[1])
        world.run()

    # 5 decisions, the fifth is out: 4 complete steps in 2 segments.
    assert [(segment.length, segment.ending, segment.sequence) for segment in world.segments] == [
        (2, SegmentEnd.CUT, 0),
        (2, SegmentEnd.CUT, 1),
    ]


def test_agents_that_join_later_and_other_simulators_share_one_forward_pass() -> None:
    world = World(size=100)
    for simulator in range(3):
        world.join(simulator)
    world.grant(0)
    world.step(0, decide=[1])
    world.run()

    world.step(0, decide=[1, 9])
    world.step(1, decide=[1])
    world.step(2, decide=[5, 3, 1])
    world.run()

    assert world.policy.passes == [1, 6]


def test_a_round_has_exactly_its_size_though_messages_do_not_divide_it() -> None:
    world = World(size=20)
    world.join(0)
    world.grant(0)

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
    world = World(size=20)
    world.join(0)
    world.join(1)
    world.grant(0)
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
    world.step(0, decide=range(4))
    world.run()
    world.step(0, decide=range(4))
    assert world.run().deliver, "the quota is used"
    assert world.members[0].states("waiting") == list(range(4))

    world.grant(0, 8)

    assert world.members[0].states("acting") == list(range(4))
    assert (world.quota.left, world.quota.outstanding[0]) == (4, 4)


def test_a_held_message_does_not_hold_the_simulator_that_owes_a_step() -> None:
    world = World(size=3)
    world.join(0)
    world.grant(0)
    world.step(0, decide=[1, 2])
    world.run()
    world.step(0, decide=[3])
    world.run()

    # Permits are used up, but the game cannot bring agents 1 and 2 back before agent 3 moves again.
    world.step(0, decide=[3])
    world.run()

    assert world.members[0].states("acting") == [1, 2, 3]
    world.step(0, decide=[1, 2])
    world.run()
    assert world.delivered[0] == 3
    assert world.members[0].states("waiting") == [1, 2]


def test_an_overdraft_larger_than_the_quota_does_not_hold_the_simulator_that_owes_a_step_of_it() -> None:
    world = World(size=2)
    world.join(0)
    world.grant(0)
    world.step(0, decide=[1, 2, 3])
    world.run()
    world.step(0, decide=[1, 2])  # agent 3 owes a step of round 1
    world.run()
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
    world = World(size=10)
    world.join(0)
    world.join(1)
    world.grant(0)
    for _ in range(2):
        world.step(0, decide=[1, 2])
        world.step(1, decide=[1])
        world.run()

    world.leave(0)  # it had 2 complete steps and 2 answered ones
    for _ in range(30):
        if world.members[1].states("waiting"):
            break
        world.step(1, decide=[1])
        world.run()

    assert world.delivered[0] == 10
    assert {segment.simulator for segment in world.segments} == {1}


def test_a_straggler_makes_room_and_its_step_counts_into_the_next_round() -> None:
    world = World(size=6)
    world.join(0)
    world.join(1)
    world.grant(0)
    for _ in range(3):
        world.step(0, decide=[1])
        world.step(1, decide=[1])
        world.run()
    world.step(1, decide=[1])
    world.run()  # simulator 0 owes its third step of the round; simulator 1 is held

    released = world.runner.release_late_agents([world.members[0].agent_index])
    world.run()
    world.step(1, decide=[1])
    world.run()

    assert released == 1
    assert world.delivered[0] == 6
    world.step(0, end=[1])
    world.run()
    assert world.delivered[1] == 1


def test_an_agent_that_ends_while_it_waits_is_not_answered() -> None:
    world = World(size=2)
    world.join(0)
    world.grant(0)
    world.step(0, decide=[1, 2])
    world.run()
    world.step(0, decide=[1, 2])
    world.run()  # held: the round is used up

    world.step(0, end=[2])
    world.run()
    world.grant(1)

    assert world.members[0].states("acting") == [1]
    assert world.members[0].states("idle") == [2]


def test_asking_twice_is_an_error_that_leaves_the_first_question_alone() -> None:
    world = World(size=2)
    world.join(0)
    world.step(0, decide=[1])
    world.run()

    with pytest.raises(ProtocolError) as raised:
        world.step(0, decide=[1])

    assert raised.value.code is CloseCode.DECISION_PENDING


def test_two_messages_of_one_simulator_in_one_turn_build_on_each_other() -> None:
    world = World()
    world.join(0)
    world.grant(0)
    world.step(0, decide=[1])
    world.run()

    world.step(0, end=[1])
    world.step(0, decide=[1])
    world.run()

    assert world.members[0].states("acting") == [1]
    assert len(world.segments) == 1


def test_the_end_of_an_unknown_agent_is_ignored() -> None:
    world = World()
    world.join(0)
    world.grant(0)

    world.step(0, end=[99])
    world.run()

    assert not world.segments
    assert world.recorder.take_episodes() is None


def test_unrecorded_agents_are_answered_without_permits_and_leave_no_segments() -> None:
    world = World(size=4)
    world.join(0)
    world.grant(0)
    world.step(0, decide=[1])
    world.run()
    before = len(world.recorder.segments.blocks)

    world.runner.stop_recording()
    for _ in range(20):
        world.step(0, decide=[1])
        world.run()
    world.step(0, end=[1])
    world.run()

    assert world.members[0].states("idle") == [1]
    assert not world.segments
    assert len(world.recorder.segments.blocks) == before + 1  # the open segment's block came back


def test_too_few_blocks_hold_agents_until_more_come() -> None:
    world = World()
    world.join(0)
    blocks, world.recorder.segments.blocks = world.recorder.segments.blocks, [0]
    world.grant(0)
    world.step(0, decide=[1, 2])

    assert world.run().want_blocks
    assert world.members[0].states("waiting") == [1, 2]

    world.recorder.segments.blocks.extend(blocks[1:9])
    world.runner.wanted_blocks = False
    world.run()
    assert world.members[0].states("acting") == [1, 2]


def test_ids_that_never_return_do_not_fill_memory() -> None:
    world = World(size=10_000)
    world.join(0)
    world.grant(0)

    for agent in range(2_000):
        world.step(0, decide=[agent])
        world.run()
        world.step(0, end=[agent])
        world.run()

    assert len(world.members[0].agent_index.table) <= 64
    assert len(world.recorder.agents.state) <= 128
    assert world.recorder.agents.steps_of(np.zeros(0, np.intp)) + world.members[0].agent_index.former_steps >= 1_900


def test_more_agents_than_allowed_are_refused() -> None:
    world = World(size=100_000)
    world.join(0)

    with pytest.raises(ProtocolError) as raised:
        world.step(0, decide=range(10_001))

    assert raised.value.code is CloseCode.TOO_MANY_AGENTS


def memories(world: World, simulator: int, agent: int) -> list[list[float]]:
    """What the policy remembered before each step of an agent, in order."""
    steps = [world.steps[number] for number in sorted(world.steps)]
    return [step.memory for step in steps if (step.simulator, step.agent) == (simulator, agent)]


def test_memory_is_that_of_the_agent_and_empty_where_an_episode_begins() -> None:
    world = World(size=100, recurrent=True)
    world.join(0)
    world.grant(0)
    world.step(0, decide=[1, 2])
    world.run()
    world.step(0, decide=[1])
    world.run()

    world.step(0, decide=[1], end=[1])
    world.run()
    world.step(0, decide=[2], end=[1])
    world.run()
    world.step(0, end=[2])
    world.run()

    # Decisions are numbered 0 (agent 1), 1 (agent 2), 2 (agent 1), 3 (agent 1, new episode), 4 (agent 2).
    # The policy remembers how many steps there were, and the numbers of the last two; `world` compares it with what
    # was recorded.
    assert memories(world, 0, 1) == [[0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert memories(world, 0, 2) == [[0, 0, 0], [1, 1, 0]]
    assert len(world.segments) == 3


def test_pink_noise_goes_on_with_the_agent_whoever_asks_beside_it() -> None:
    world = World(size=10_000)
    world.join(0)
    world.join(1)
    world.grant(0)
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
    world = World(size=100)
    world.join(0)
    world.grant(0)
    world.step(0, decide=[1])
    world.run()

    assert world.policy.driven_by == [None]


def test_memory_outlives_a_cut_a_wait_and_a_round() -> None:
    world = World(size=2, horizon=2, recurrent=True)
    world.join(0)
    world.grant(0)
    for number in range(1, 5):
        while not world.members[0].states("waiting"):  # until it is held: the round is used up
            world.step(0, decide=[1])
            world.run()
        world.grant(number)
    world.step(0, end=[1])
    world.run()

    assert [memory[0] for memory in memories(world, 0, 1)] == list(
        range(9)
    )  # 4 rounds of 2, and the first of the fifth


def test_memory_goes_on_without_recording() -> None:
    world = World(recurrent=True)
    world.join(0)
    world.grant(0)
    world.step(0, decide=[1])
    world.run()
    world.runner.stop_recording()

    for _ in range(3):
        world.step(0, decide=[1])
        world.run()
    world.step(0, decide=[1], end=[1])
    world.run()

    assert [step.tolist() for step in world.policy.remembered] == [
        [[0, 0, 0]],
        [[1, 0, 0]],
        [[2, 1, 0]],
        [[3, 2, 1]],
        [[0, 0, 0]],
    ]


def test_a_segment_knows_whether_its_group_goes_on() -> None:
    world = World(size=100, grouped=True)
    world.join(0)
    world.join(1)
    world.grant(0)
    for simulator in (0, 1):
        world.step(simulator, decide=[1, 3, 4, 7])  # 1, 4 and 7 are group 1, agent 3 is alone
    world.run()

    world.step(0, end=[1, 3])
    world.run()
    world.step(0, decide=[4, 7], end=[4, 7])
    world.run()

    # 4 and 7 end together and begin again at once, with another attempt; those of simulator 1 are other people.
    assert [(segment.agent, segment.mates_alive) for segment in world.segments] == [
        *((1, True), (3, False)),
        *((4, False), (7, False)),
    ]


def test_messages_of_one_turn_have_ticks_of_their_own() -> None:
    world = World(size=100)
    for simulator in (0, 1):
        world.join(simulator)
    world.grant(0)
    for simulator in (0, 1):
        world.step(simulator, decide=[1, 2])
    world.run()
    for simulator in (1, 0):
        world.step(simulator, end=[1, 2])
    world.run()

    ticks = {
        (segment.simulator, segment.agent): (
            int(gather(world.arena, columns_of([segment])).ticks),
            segment.successor_tick,
        )
        for segment in world.segments
    }
    first = FIRST_TICK
    assert ticks == {
        **dict.fromkeys([(0, 1), (0, 2)], (first, first + 3)),
        **dict.fromkeys([(1, 1), (1, 2)], (first + 1, first + 2)),
    }


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
