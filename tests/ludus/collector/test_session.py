"""Environment parameters on their way to running simulators, and episodes that tell which ones they began with."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ludus.collector.messages import StatsReported
from ludus.config.environment_parameters import Lesson
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import samplers_from_messages
from ludus.protocol.environment_parameters import Constant, Gaussian, MultiRangeUniform, ParameterValue, Uniform
from tests.ludus.collector.stack import PATIENCE, SPEC, Learner, Simulator, learner, pids_of, player
from tests.waiting import eventually
from worker.collectors.events import CollectorDied, Endpoint, EpisodesEnded
from worker.trainer.environment_parameters import EnvironmentParameterManager

SAMPLERS: dict[str, ParameterValue] = {
    "wind": Uniform(1.0, 2.0, seed=5),
    "mass": Gaussian(1.0, 0.5, seed=-3),
    "gap": MultiRangeUniform(((0.0, 1.0), (3.0, 4.0)), seed=2**31 - 1),
}


def until_told(simulator: Simulator) -> pb.Actions:
    """Play on until an answer brings parameters."""
    for _ in range(200):
        simulator.step([0])
        actions = simulator.receive().actions
        if actions.environment_parameters:
            return actions
    raise AssertionError("no answer brought any")


def sets_of(trainer: Learner) -> list[int]:
    """Return the sets of parameters under which the episodes began that have ended, in the order of their ends."""
    return [number for notice in trainer.heard(EpisodesEnded) for number in notice.records["parameter_set"].tolist()]


def test_new_parameters_come_once_with_the_next_answer_and_reset_nothing() -> None:
    with learner(environment_parameters={"gravity": Constant(1.0)}) as trainer:
        simulator = Simulator(trainer.endpoints[0].address)
        welcome = simulator.hello(SPEC).welcome
        assert (dict(welcome.environment_parameters), dict(welcome.samplers)) == ({"gravity": 1.0}, {})
        simulator.play([0], 3)

        trainer.pool.send_parameters({"gravity": Constant(2.0), **SAMPLERS}, 1)

        actions = until_told(simulator)
        assert actions.step_id == simulator.step_id
        assert len(actions.behaviors) == 1
        values = dict(actions.environment_parameters)
        assert values.pop("gravity") == 2.0
        assert 1.0 <= values.pop("wind") <= 2.0
        assert values.keys() == {"mass", "gap"}
        assert samplers_from_messages(actions.samplers) == SAMPLERS
        simulator.step([0])
        assert not simulator.receive().actions.environment_parameters


def test_an_episode_carries_the_parameters_that_its_simulator_had_been_told_when_it_began() -> None:
    with learner(environment_parameters={"gravity": Constant(1.0)}) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1], 2)
        trainer.pool.send_parameters({"gravity": Constant(2.0)}, 1)
        until_told(simulator)

        simulator.step([0, 2], ended=[0])  # 1 goes on; 0 begins again, 2 for the first time
        simulator.receive()
        simulator.step([], ended=[0, 1, 2])

        eventually(lambda: len(sets_of(trainer)) == 4)
        assert sets_of(trainer) == [0, 1, 0, 1]


def test_a_reset_begins_episodes_with_the_new_parameters() -> None:
    with learner(size=4, lockstep=False, environment_parameters={"gravity": Constant(1.0)}) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0], 4)
        simulator.step([0])  # held

        trainer.pool.send_parameters({"gravity": Constant(2.0), "wind": SAMPLERS["wind"]}, 7, reset=True)

        reset = simulator.receive().reset
        assert reset.environment_parameters["gravity"] == 2.0
        assert samplers_from_messages(reset.samplers) == {"wind": SAMPLERS["wind"]}
        fresh = simulator.make_step([0])
        fresh.reset_id = 1
        simulator.send(fresh)
        trainer.pool.grant(SPEC.behavior, 1, 4)
        assert not simulator.receive().actions.environment_parameters, "it has been told already"
        ended = simulator.make_step([], ended=[0])
        ended.reset_id = 1
        simulator.send(ended)
        eventually(lambda: sets_of(trainer) == [7])


def test_whoever_comes_later_is_told_the_newest() -> None:
    with learner(count=2, environment_parameters={"gravity": Constant(1.0)}) as trainer:
        early = player(trainer.endpoints[0].address)
        trainer.pool.send_parameters({"gravity": Constant(2.0)}, 1)
        until_told(early)

        late = Simulator(trainer.endpoints[0].address)
        assert dict(late.hello(SPEC).welcome.environment_parameters) == {"gravity": 2.0}
        late.step([0])
        assert not late.receive().actions.environment_parameters
        late.step([], ended=[0])
        eventually(lambda: sets_of(trainer) == [1])


def test_a_restarted_collector_tells_the_newest() -> None:
    with learner(environment_parameters={"gravity": Constant(1.0)}) as trainer:
        trainer.pool.send_parameters({"gravity": Constant(2.0)}, 1)
        os.kill(pids_of(trainer.pool)[0], signal.SIGKILL)
        trainer.wait_for(CollectorDied)
        trainer.pool.send_parameters({"gravity": Constant(3.0)}, 2)  # while it starts
        listening = trainer.wait_for(Endpoint)

        simulator = Simulator(listening.address)

        told = dict(simulator.hello(SPEC).welcome.environment_parameters)
        if told == {"gravity": 2.0}:  # the collector had its settings already, and hears of the newest any moment
            told = dict(until_told(simulator).environment_parameters)
        assert told == {"gravity": 3.0}


def test_reported_numbers_belong_to_the_episodes_that_end_with_them() -> None:
    with learner(environment_parameters={"gravity": Constant(1.0)}) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0, 1], 2)
        trainer.pool.send_parameters({"gravity": Constant(2.0)}, 1)
        until_told(simulator)

        def report(key: str, agents: list[int], ended: list[int]) -> None:
            step = simulator.make_step(agents, ended=ended)
            step.stats.add(key=key, value=1.0)
            simulator.send(step)
            simulator.receive()

        report("old", [0], [0])
        report("new", [0], [0])
        report("both", [1, 0], [0, 1])
        report("none", [0], [])

        def found() -> dict[str, int]:
            return {row.key: row.parameter_set for row in trainer.heard(StatsReported)}

        eventually(lambda: len(found()) == 4)
        assert found() == {"old": 0, "new": 1, "both": 0, "none": 1}


def test_numbers_that_crossed_a_reset_belong_to_no_present_parameters() -> None:
    with learner(size=4, lockstep=False) as trainer:
        simulator = player(trainer.endpoints[0].address)
        simulator.play([0], 4)
        simulator.step([0])
        trainer.pool.send_parameters({"gravity": Constant(2.0)}, 1, reset=True)
        simulator.receive()
        crossing = simulator.make_step([0])
        crossing.stats.add(key="late", value=1.0)
        simulator.send(crossing)

        assert trainer.wait_for(StatsReported).parameter_set == -1


class Grader(threading.Thread):
    """A game of one agent whose episodes have four steps, each of which earns what `difficulty` was at the begin."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.simulator = Simulator(address)
        self._difficulty = self.simulator.hello(SPEC).welcome.environment_parameters["difficulty"]
        self.stopping = False

    def run(self) -> None:
        reward, ended = 0.0, ()
        while not self.stopping:
            begun = self._difficulty
            self._exchange(reward, ended)
            reward, ended = begun, ()
            for _ in range(3):
                self._exchange(reward, ())
            ended = (0,)

    def _exchange(self, reward: float, ended: tuple[int, ...]) -> None:
        self.simulator.step([0], ended=ended, reward=reward)
        actions = self.simulator.receive().actions
        if actions.environment_parameters:
            self._difficulty = actions.environment_parameters["difficulty"]


@contextmanager
def grading(trainer: Learner) -> Iterator[None]:
    """Play two games at every collector."""
    games = [Grader(endpoint.address) for endpoint in trainer.endpoints for _ in range(2)]
    for game in games:
        game.start()
    try:
        yield
    finally:
        for game in games:
            game.stopping = True
        for game in games:
            game.join(PATIENCE)
            game.simulator.leave()


@pytest.mark.parametrize("collectors", [1, 3])
def test_lessons_change_where_the_formula_says_whatever_the_number_of_collectors(collectors: int) -> None:
    # An episode returns 4 times its lesson's value. Lesson 1: episodes 5, 6 and 7 measure 3, 3.75 and 3.9375.
    # Lesson 2, where the smoothed value goes on: episodes 5 and 6 measure 0.25 * 3.9375 + 6 = 6.98 and 7.75.
    thresholds = (3.9, 7.5, None)
    lessons = [
        Lesson.model_validate(
            {
                "name": f"L{index}",
                "value": index,
                "completion_criteria": threshold
                and {"behavior": SPEC.behavior, "threshold": threshold, "min_lesson_length": 5},
            }
        )
        for index, threshold in enumerate(thresholds, 1)
    ]
    manager = EnvironmentParameterManager(
        {"difficulty": lessons}, progress=lambda _behavior: 0.0, rating=lambda _: None
    )
    with learner(count=collectors, size=96, environment_parameters=manager.samplers) as trainer:
        taken = 0

        def teach() -> bool:
            """Feed the manager what has come since, and tell the simulators what it changes."""
            nonlocal taken
            events = trainer.heard(EpisodesEnded)[taken:]
            taken += len(events)
            for notice in events:
                if manager.episodes_ended(notice):
                    trainer.pool.send_parameters(manager.samplers, manager.number)
            return manager.number == 2 and sets_of(trainer).count(2) >= 4

        with grading(trainer):
            eventually(teach, 3 * PATIENCE)  # some twenty episodes of six games, each step an exchange

        ended = [
            (number, value)
            for notice in trainer.heard(EpisodesEnded)[:taken]
            for number, value in notice.records[["parameter_set", "return"]].tolist()
        ]
        assert all(value == 4 * (number + 1) for number, value in ended), "each was played as its number says"
        assert taught(ended) == [7, 6]


def taught(ended: list[tuple[int, float]]) -> list[int]:
    """Return after how many counted episodes each lesson was over, by the formula."""
    counts, smoothed, lesson, buffer = [], 0.0, 0, list[float]()
    for number, value in ended:
        if lesson == 2 or number < lesson:
            continue
        buffer.append(value)
        if len(buffer) >= 5:
            smoothed = 0.25 * smoothed + 0.75 * sum(buffer[-5:]) / 5
            if smoothed > (3.9, 7.5)[lesson]:
                counts.append(len(buffer))
                lesson, buffer = lesson + 1, []
    return counts
