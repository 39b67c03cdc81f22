"""Rounds, published versions and rollbacks, whatever the algorithm."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.collector.arena import Arena
from ludus.collector.segments import SegmentEnd
from ludus.config.behavior import PPOConfig, SACConfig
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from tests.segments import Segment, columns_of
from tests.worker.learners import RecordingCollection, ScriptedAlgorithm, ended_episodes
from worker.collectors.events import SegmentsDelivered
from worker.learning.algorithms.numeric_check import Diverged
from worker.trainer.learner import BehaviorLearner, Progress, arena_steps
from worker.trainer.messages import Metrics
from worker.trainer.recorder import Recorder

SPEC = BehaviorSpec("Walker", (ObservationSpec((3,)),), ActionSpec(1))


class World:
    """A learner, and hands that collect for it."""

    def __init__(self, script: Sequence[str], *, progress: Progress | None = None, **config: Any) -> None:
        self.algorithm = ScriptedAlgorithm(script)
        self.collection = RecordingCollection()
        self.arena = Arena.create(SPEC, 100)
        self.points: dict[tuple[str, int], float] = {}
        settings = {"max_steps": 1000, "checkpoint_interval": 25, **config}
        self.learner = BehaviorLearner(
            PPOConfig.model_validate(settings),
            SPEC,
            self.algorithm,
            self.arena,
            Recorder("Walker", config.get("summary_freq", 1000), self._post),
            self.collection,
            progress or Progress(),
        )
        self._block = 0

    def _post(self, metrics: Metrics) -> None:
        self.points |= {(point.key, point.step): point.value for point in metrics.points if "Steps" not in point.key}

    def deliver(self, stream: Sequence[tuple[int, float | None]]) -> None:
        """Deliver segments of so many steps; those with a return end an episode."""
        ended = [(number, value) for number, (_, value) in enumerate(stream, 1) if value is not None]
        if ended:
            closed, returns = (np.array(column) for column in zip(*ended, strict=True))
            episodes = ended_episodes("Walker", **{"return": returns}, length=returns + 1, closed=closed)
            self.learner.episodes_ended(episodes)
        segments = columns_of(Segment(0, 0, 0, 0, 0, length, 1, SegmentEnd.CUT, (0,)) for length, _ in stream)
        if len(segments):
            self.learner.add(SegmentsDelivered("Walker", 0, segments))

    def collect(self, round_number: int, steps: int = 10) -> None:
        """Deliver a round in two segments."""
        for length in (steps // 2, steps - steps // 2):
            segment = Segment(0, 0, 0, 0, 0, length, round_number, SegmentEnd.CUT, (self._block,))
            self._block += 1
            self.learner.add(SegmentsDelivered("Walker", 0, columns_of([segment])))
        self.learner.collected(round_number)


@pytest.fixture
def worlds() -> Iterator[list[World]]:
    """Worlds that are closed with the test."""
    made: list[World] = []
    yield made
    for world in made:
        world.arena.close()


def world_of(worlds: list[World], script: Sequence[str], **overrides: Any) -> World:
    worlds.append(World(script, **overrides))
    return worlds[-1]


def test_a_round_has_the_size_that_the_algorithm_asks_for_and_the_next_waits_for_its_update(
    worlds: list[World],
) -> None:
    world = world_of(worlds, ["learned"])
    world.learner.start()
    assert world.collection.take() == [("publish", 0), ("grant", 1, 10)]
    assert not world.learner.ready

    world.collect(1)
    assert world.learner.ready
    assert world.learner.learn() is None

    assert world.collection.take() == [("reclaim", 2), ("publish", 1), ("grant", 2, 10)]
    assert world.algorithm.steps_of_updates == [(10, 10)]


def test_a_threaded_behavior_collects_the_next_round_while_it_learns(worlds: list[World]) -> None:
    world = world_of(worlds, ["learned"], threaded=True)
    world.learner.start()
    world.collect(1)
    world.collection.take()

    world.learner.learn()

    assert world.collection.take() == [("reclaim", 2), ("grant", 2, 10), ("publish", 1)]


def test_nothing_is_published_where_nothing_was_learnt_and_collection_goes_on(worlds: list[World]) -> None:
    world = world_of(worlds, ["nothing", "learned"])
    world.learner.start()
    world.collect(1)
    world.collection.take()

    assert world.learner.learn() is None

    assert world.collection.take() == [("reclaim", 2), ("grant", 2, 10)]
    world.collect(2)
    world.learner.learn()
    assert ("publish", 1) in world.collection.take()


def test_a_round_that_was_too_old_is_measured_and_counted_and_nothing_is_published(worlds: list[World]) -> None:
    world = world_of(worlds, ["stale", "stale"], max_steps=20, summary_freq=10)
    world.learner.start()
    world.collect(1)
    world.collection.take()

    assert world.learner.learn() is None
    assert world.collection.take() == [("reclaim", 2), ("grant", 2, 10)]
    world.collect(2)
    world.learner.learn()

    assert world.learner.done, "a run in which nothing can be learned from ends, too"
    assert world.points["Policy/Stale Share", 20] == 1.0


def test_the_last_round_is_shorter_and_then_the_behavior_only_answers(worlds: list[World]) -> None:
    world = world_of(worlds, ["learned", "learned"], max_steps=14)
    world.learner.start()
    world.collect(1)
    world.learner.learn()
    assert world.collection.take()[-1] == ("grant", 2, 4)

    world.collect(2, steps=4)
    world.learner.learn()

    assert world.learner.done
    assert world.learner.learned == 14
    assert world.collection.take()[-1] == ("unrecorded",)


def test_an_update_that_was_taken_back_is_told_and_not_published(worlds: list[World]) -> None:
    world = world_of(worlds, ["diverged"])
    world.learner.start()
    world.collect(1)
    world.collection.take()

    told = world.learner.learn()

    assert told is not None
    assert "gradient" in told
    assert world.collection.take() == [("reclaim", 2), ("grant", 2, 10)]


def test_three_rollbacks_in_a_row_end_the_run_and_a_good_update_begins_a_new_count(worlds: list[World]) -> None:
    script = ["diverged", "diverged", "learned", "diverged", "diverged", "diverged"]
    world = world_of(worlds, script)
    world.learner.start()
    told = []
    for number in range(1, 6):
        world.collect(number)
        told.append(world.learner.learn() is not None)
    assert told == [True, True, False, True, True]

    world.collect(6)
    with pytest.raises(Diverged):
        world.learner.learn()


def test_a_resumed_behavior_goes_on_with_its_round_and_its_checkpoints(worlds: list[World]) -> None:
    world = world_of(worlds, ["learned"], progress=Progress(step=20, round=3))

    world.learner.start()

    assert world.collection.take()[-1] == ("grant", 4, 10)
    assert not world.learner.checkpoint_due
    world.collect(4)
    world.learner.learn()
    assert world.algorithm.steps_of_updates == [(10, 30)]
    assert world.learner.checkpoint_due, "25 lies between 20 and 30"
    world.learner.checkpointed()
    assert not world.learner.checkpoint_due
    assert world.learner.state() == {"progress": {"step": 30, "round": 5}, "algorithm": {"version": 1}}


def test_learning_goes_on_to_a_later_end(worlds: list[World]) -> None:
    world = world_of(worlds, ["learned"] * 3, max_steps=20)
    world.learner.start()
    world.collect(1)
    world.learner.learn()  # the last round is granted

    assert world.learner.reconfigure(PPOConfig(max_steps=30, checkpoint_interval=7))
    for round_number in (2, 3):
        world.collect(round_number)
        world.learner.learn()

    assert (world.learner.done, world.learner.learned) == (True, 30)
    assert world.algorithm.config.max_steps == 30
    assert [order for order in world.collection.take() if order[0] == "grant"] == [
        ("grant", 1, 10),
        ("grant", 2, 10),
        ("grant", 3, 10),
    ]


@pytest.mark.parametrize(("threaded", "end"), [(False, 20), (True, 30)])
def test_an_earlier_end_comes_with_the_rounds_that_are_under_way(
    worlds: list[World], end: int, *, threaded: bool
) -> None:
    world = world_of(worlds, ["learned"] * 3, threaded=threaded)
    world.learner.start()
    world.collect(1)
    world.learner.learn()
    if threaded:  # collection runs a round ahead
        world.collect(2)
        world.learner.learn()

    assert world.learner.reconfigure(PPOConfig(max_steps=5, threaded=threaded))
    assert not world.learner.done
    world.collect(end // 10)
    world.learner.learn()

    assert (world.learner.done, world.learner.learned) == (True, end)
    assert world.collection.take()[-1] == ("unrecorded",), "its agents are answered on"


def test_a_behavior_that_was_done_needs_a_new_attempt_to_learn_on(worlds: list[World]) -> None:
    world = world_of(worlds, ["learned"], max_steps=10)
    world.learner.start()
    world.collect(1)
    world.learner.learn()
    assert world.learner.done

    assert world.learner.reconfigure(PPOConfig(max_steps=8)), "nothing is left to learn"
    assert not world.learner.reconfigure(PPOConfig(max_steps=20))

    assert world.learner.done


def test_a_new_interval_counts_from_the_present_step(worlds: list[World]) -> None:
    world = world_of(worlds, ["learned"] * 2, checkpoint_interval=1000)
    world.learner.start()
    world.collect(1)
    world.learner.learn()
    assert not world.learner.checkpoint_due

    world.learner.reconfigure(PPOConfig(max_steps=1000, checkpoint_interval=15))
    world.collect(2)
    world.learner.learn()

    assert world.learner.checkpoint_due


def test_an_arena_holds_whole_segments_also_where_rounds_are_short() -> None:
    assert arena_steps(SACConfig(), round_steps=1) == 3 * SACConfig().time_horizon
    assert arena_steps(PPOConfig(), round_steps=10_240) == 3 * 10_240


STREAM = st.lists(st.tuples(st.integers(1, 9), st.none() | st.integers(0, 99)), min_size=1, max_size=40)


@given(stream=STREAM, cuts=st.sets(st.integers(0, 40)))
def test_what_a_summary_holds_does_not_depend_on_when_segments_are_delivered(
    stream: list[tuple[int, int | None]], cuts: set[int]
) -> None:
    at_once, in_parts = World([], summary_freq=10), World([], summary_freq=10)
    at_once.deliver(stream)
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    for begin, end in pairwise(edges):
        in_parts.deliver(stream[begin:end])
    for world in (at_once, in_parts):
        world.arena.close()

    assert in_parts.points == at_once.points
    assert at_once.learner.step == sum(length for length, _ in stream)
