"""Whole attempts whose lessons change: real collectors, a real learner, games of the SDK."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.collector.messages import StatsReported
from ludus.config.environment_parameters import Lesson
from ludus.protocol.batches import Aggregation
from ludus.protocol.environment_parameters import Constant, Uniform
from ludus.sdk import Actions, ActionSpec, BehaviorSpec, ObservationSpec, ResetInfo, Simulation, StepBuilder
from tests.worker.learners import ended_episodes
from tests.worker.trainer.supervisor_port import Supervisor
from worker.trainer import checkpoint
from worker.trainer.checkpoint import ENVIRONMENT_PARAMETERS
from worker.trainer.environment_parameters import MISSING_EPISODES, EnvironmentParameterManager, LessonChange
from worker.trainer.loop import Trainer
from worker.trainer.messages import (
    Command,
    EditParameters,
    EventRecord,
    Finished,
    Job,
    Message,
    ParameterEdit,
    ParameterStates,
)


def lessons(*criteria: Mapping[str, Any] | None) -> list[Lesson]:
    """Make lessons named a, b, c, ... with values 1, 2, 3, ...; each takes its criteria of behavior `Walker`."""
    return [
        Lesson.model_validate(
            {
                "name": "abcdefgh"[index],
                "value": index + 1,
                "completion_criteria": None if each is None else {"behavior": "Walker", **each},
            }
        )
        for index, each in enumerate(criteria)
    ]


class Run:
    """A manager with what it asks of a run."""

    def __init__(self, *, first: Mapping[str, int] | None = None, **parameters: Sequence[Lesson]) -> None:
        self.progress: dict[str, float] = {"Walker": 0.0, "Runner": 0.0}
        self.ratings: dict[str, float] = {}
        self.manager = EnvironmentParameterManager(
            parameters, first, progress=self.progress.get, rating=self.ratings.get
        )

    def ended(
        self, *returns: float, number: int | None = None, behavior: str = "Walker", length: int = 10
    ) -> list[LessonChange]:
        """Let episodes end that began under a set of parameters, by default the present one."""
        number = self.manager.number if number is None else number
        columns = {"return": np.array(returns), "group_return": np.array(returns) * 10}
        return self.manager.episodes_ended(ended_episodes(behavior, **columns, length=length, parameter_set=number))

    def reported(self, key: str, *values: float, number: int | None = None) -> list[LessonChange]:
        """Let simulators report numbers."""
        number = self.manager.number if number is None else number
        total = sum(values)
        return self.manager.stats_reported(
            StatsReported(key, Aggregation.AVERAGE, len(values), total, values[-1], (), number)
        )

    @property
    def lesson(self) -> str:
        return self.manager.statuses()[0].lesson_name

    @property
    def sentence(self) -> str:
        return self.manager.statuses()[0].waits_for


def plain(threshold: float, **more: Any) -> dict[str, Any]:
    """Write criteria without smoothing."""
    return {"threshold": threshold, "signal_smoothing": False, **more}


def test_a_lesson_ends_with_the_first_episode_that_lifts_the_mean_above_the_threshold() -> None:
    run = Run(wall=lessons(plain(0.5, min_lesson_length=4), None))

    assert run.ended(1, 1, 1) == []  # the mean is 1, but of three episodes only
    assert run.ended(-1) == []  # mean of 1, 1, 1, -1 = 0.5: not above it
    assert run.ended(-1) == []  # mean of 1, 1, -1, -1 = 0
    assert run.ended(1, 1, 1) == []  # at last mean of -1, 1, 1, 1 = 0.5
    (change,) = run.ended(1)  # mean of 1, 1, 1, 1

    assert (change.parameter, change.cause, change.must_reset) == ("wall", "completed", False)
    assert change.log_line == "Parameter 'wall' is in lesson 'b' and has value 'Float: value=2.0'."
    assert (change.old.lesson, change.new.lesson) == (1, 2)
    assert run.manager.samplers == {"wall": Constant(2.0)}
    assert run.manager.lesson_numbers == {"wall": 1}


def test_the_measure_is_a_quarter_of_the_last_and_three_quarters_of_the_new_mean() -> None:
    run = Run(wall=lessons({"threshold": 0.93, "min_lesson_length": 2}, None))

    run.ended(1)  # not two yet: not looked at
    run.ended(1)
    assert run.manager.statuses()[0].measured == 0.75
    (change,) = run.ended(1)

    assert change.old.measured == 0.25 * 0.75 + 0.75  # 0.9375 > 0.93
    assert run.lesson == "b"


def test_only_episodes_of_the_present_lesson_count() -> None:
    run = Run(wall=lessons(plain(0.5, min_lesson_length=2), plain(0.5, min_lesson_length=2), None))
    run.ended(1, 1)
    assert run.lesson == "b"

    assert run.ended(1, 1, 1, number=0) == []
    assert run.manager.statuses()[0].episodes == 0
    run.ended(1)
    assert run.ended(1, number=0) == []
    assert run.ended(1) != []


def test_episodes_of_other_lessons_count_if_that_is_asked_for() -> None:
    criteria = plain(0.5, min_lesson_length=2, count_all_episodes=True)
    run = Run(wall=lessons(criteria, criteria, None))

    run.ended(1, 1)
    run.ended(1, 1, number=0)

    assert run.lesson == "c"


def test_what_is_left_of_a_notice_belongs_to_the_lesson_before() -> None:
    run = Run(wall=lessons(plain(0.5), plain(0.5), None))

    assert len(run.ended(1, 1, 1)) == 1
    assert run.lesson == "b"


def test_any_change_empties_all_buffers_and_no_change_resets_what_is_smoothed() -> None:
    run = Run(wall=lessons({"threshold": 100.0, "min_lesson_length": 2}, None), gap=lessons(plain(5.0), None))
    run.ended(1, 1)
    before = run.manager.statuses()[0]
    assert (before.measured, before.episodes) == (0.75, 2)

    (change,) = run.ended(20)  # the wall's mean is (1 + 20) / 2 = 10.5, smoothed 0.25 * 0.75 + 0.75 * 10.5 = 8.0625
    assert change.parameter == "gap"
    assert run.manager.statuses()[0].episodes == 0

    run.ended(1)
    assert run.manager.statuses()[0].episodes == 1
    run.ended(1)
    assert run.manager.statuses()[0].measured == 0.25 * 8.0625 + 0.75 * 1


SUCCESS = "Environment/Success"


def test_a_lesson_does_not_pass_on_the_number_of_another_measure() -> None:
    run = Run(wall=lessons({"threshold": 5}, {"measure": SUCCESS, "threshold": 0.6}, None))
    run.ended(10)
    assert run.lesson == "b"

    assert run.reported(SUCCESS, 0.31) == []  # from the 7.5 of the rewards: 2.1

    assert run.manager.statuses()[0].measured == 0.31
    assert len(run.reported(SUCCESS, 0.7)) == 1  # 0.25 * 0.31 + 0.75 * 0.7 = 0.6025


def test_a_lesson_does_not_pass_on_the_number_of_another_behavior() -> None:
    run = Run(wall=lessons({"threshold": 5}, {"behavior": "Runner", "threshold": 5}, None))
    run.ended(100)
    assert run.lesson == "b"

    assert run.ended(1, behavior="Runner") == []

    assert run.manager.statuses()[0].measured == 0.75


def test_what_is_smoothed_goes_on_in_a_later_lesson_of_the_same_measure() -> None:
    between = {"measure": "progress", "threshold": 0.5}
    run = Run(wall=lessons({"threshold": 5}, between, {"threshold": 50}, None))
    run.ended(10)  # 7.5
    run.progress["Walker"] = 0.6
    run.manager.advanced("Walker")
    assert run.lesson == "c"

    run.ended(10)

    assert run.manager.statuses()[0].measured == 0.25 * 7.5 + 7.5  # as ML-Agents goes on


def test_a_metric_is_smoothed_from_its_first_mean_not_from_nothing() -> None:
    run = Run(
        first={"wall": 1},
        wall=lessons(plain(0), {"measure": "Environment/Distance", "threshold": -80, "fall_back_below": -150}, None),
    )

    assert run.reported("Environment/Distance", -100) == []  # from 0 on it would be -75
    assert run.manager.statuses()[0].measured == -100


def test_values_of_the_lesson_before_never_fill_the_next_ones_buffer() -> None:
    criteria = [plain(0.5, min_lesson_length=3), plain(0.5, measure=SUCCESS, min_lesson_length=3), None]
    run = Run(wall=lessons(*criteria))
    run.reported(SUCCESS, 1, 1, 1)  # what is not watched yet
    run.ended(1, 1, 1)
    assert run.lesson == "b"

    assert run.reported(SUCCESS, 1, 1, 1, number=0) == []  # of episodes that began in the lesson before
    assert run.reported(SUCCESS, 1, 1) == []
    assert run.manager.statuses()[0].episodes == 2


def test_another_parameters_change_does_not_make_running_episodes_worthless() -> None:
    run = Run(wall=lessons(plain(0.5, min_lesson_length=2), None), gap=lessons(plain(5.0), None))
    run.ended(20)
    assert run.manager.number == 1

    run.ended(1, number=0)  # began with the old gap, but with the present wall

    assert run.manager.statuses()[0].episodes == 1


def test_a_buffer_holds_as_many_episodes_as_the_longest_lesson_of_its_behavior() -> None:
    run = Run(
        wall=lessons(plain(10, min_lesson_length=1), None),
        gap=lessons(plain(10, min_lesson_length=3), plain(10, behavior="Runner", min_lesson_length=7), None),
    )

    run.ended(9, 2, 2, 2)

    assert [status.measured for status in run.manager.statuses()] == [2, 2]
    assert run.manager.sizes == {"Walker": 3, "Runner": 7}


def test_progress_is_steps_over_max_steps_and_is_not_smoothed() -> None:
    run = Run(wall=lessons({"measure": "progress", "threshold": 0.3}, None))

    run.progress["Walker"] = 0.3
    assert run.manager.advanced("Walker") == []
    run.progress["Walker"] = 0.31
    assert run.manager.advanced("Runner") == []
    assert len(run.manager.advanced("Walker")) == 1


def test_progress_waits_for_enough_episodes_too() -> None:
    run = Run(wall=lessons({"measure": "progress", "threshold": 0.3, "min_lesson_length": 2}, None))
    run.progress["Walker"] = 1.0

    assert run.manager.advanced("Walker") == []
    assert run.ended(-5) == []
    assert len(run.ended(-5)) == 1


def test_criteria_wait_while_their_behavior_has_no_trainer() -> None:
    run = Run(wall=lessons(plain(-1, behavior="Late"), None))

    assert run.ended(1, behavior="Late") == []
    assert run.sentence == "lesson 1 of 2 'a': waits for the behavior 'Late', which has no trainer yet"
    run.progress["Late"] = 0.0
    assert len(run.ended(1, behavior="Late")) == 1


def test_a_rating_can_be_the_measure() -> None:
    run = Run(wall=lessons(plain(1300, measure="Elo"), None))

    assert run.ended(1) == []
    assert run.sentence == "lesson 1 of 2 'a': no Elo yet, needs > 1300.00"
    run.ratings["Walker"] = 1300.0
    assert run.ended(1) == []
    run.ratings["Walker"] = 1301.0
    assert len(run.ended(1)) == 1


def test_a_reported_metric_can_be_the_measure() -> None:
    run = Run(wall=lessons(plain(0.6, measure="Environment/Success", min_lesson_length=4), None))

    assert run.ended(1, 1, 1, 1, 1) == []
    assert run.reported("Environment/Failure", 1, 1, 1, 1) == []
    assert run.reported("Environment/Success", 0, 0, 1) == []
    assert run.sentence == "lesson 1 of 2 'a': Environment/Success 0.33, needs > 0.60; 3 of 4 values"
    assert run.reported("Environment/Success", 1) == []  # the values of a report have one mean: 1/3 thrice, 1: 0.5
    assert run.reported("Environment/Success", 0, 0, 0, number=-1) == []
    assert len(run.reported("Environment/Success", 1)) == 1  # 1/3, 1/3, 1, 1: 0.67


@pytest.mark.parametrize(
    ("measure", "value"),
    [
        ("Environment/Episode Length", 10),
        ("Environment/Cumulative Reward", 2),
        ("Environment/Group Cumulative Reward", 20),
    ],
)
def test_what_every_episode_has_needs_no_report(measure: str, value: float) -> None:
    run = Run(wall=lessons(plain(value, measure=measure), None))

    assert run.ended(2) == []
    assert run.manager.statuses()[0].measured == value


def test_a_metric_that_never_comes_is_told_once() -> None:
    run = Run(wall=lessons(plain(0.6, measure="Environment/Succes"), None))

    run.ended(*[1.0] * (MISSING_EPISODES - 1))
    assert run.manager.take_missing() == []
    run.ended(1.0)
    (missing,) = run.manager.take_missing()
    assert (missing.name, missing.measure) == ("wall", "Environment/Succes")
    run.ended(*[1.0] * 3 * MISSING_EPISODES)
    assert run.manager.take_missing() == []


def test_a_metric_that_came_once_is_not_missed() -> None:
    run = Run(wall=lessons(plain(0.6, measure="Environment/Success"), None))

    run.reported("Environment/Success", 0.1)
    run.ended(*[1.0] * 2 * MISSING_EPISODES)

    assert run.manager.take_missing() == []


def test_a_lesson_falls_back_when_a_full_buffer_measures_too_little() -> None:
    run = Run(first={"wall": 1}, wall=lessons(plain(0.5, min_lesson_length=3), plain(0.9, fall_back_below=0.2), None))

    assert run.ended(0, 0) == []  # the buffer holds three, for the longest lesson
    (change,) = run.ended(0)

    assert (change.cause, change.old.lesson, change.new.lesson) == ("fell_back", 2, 1)
    assert run.sentence == "lesson 1 of 3 'a': no reward yet, needs > 0.50; 0 of 3 episodes"


def test_the_last_lesson_falls_back_too_and_never_ends() -> None:
    run = Run(first={"wall": 1}, wall=lessons(plain(0.5), plain(0, fall_back_below=0.2)))

    assert run.ended(5, 0.2) == []
    assert run.sentence == "lesson 2 of 2 'b': reward 0.20, falls back below 0.20"
    assert run.ended(0.1)[0].cause == "fell_back"


def test_a_sentence_says_what_is_waited_for() -> None:
    criteria = {"threshold": 0.8, "min_lesson_length": 4}
    run = Run(first={"wall": 1}, wall=lessons(criteria, criteria, criteria, None))

    assert run.sentence == "lesson 2 of 4 'b': no reward yet, needs > 0.80; 0 of 4 episodes"
    run.ended(1, 1)
    assert run.sentence == "lesson 2 of 4 'b': smoothed reward 0.75, needs > 0.80; 2 of 4 episodes"
    run.ended(0.2, 0.2)  # mean 0.6, smoothed 0.45
    assert run.sentence == "lesson 2 of 4 'b': smoothed reward 0.45, needs > 0.80; 4 of 4 episodes"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lessons(None), "no curriculum: Float: value=1.0"),
        (lessons(plain(0), None), "lesson 2 of 2 'b': the last one"),
        (lessons(None, {"threshold": 3}), "lesson 2 of 2 'b': the last one"),
        (lessons(None, plain(0.0004), None), "lesson 2 of 3 'b': no reward yet, needs > 0.0004"),
        (
            lessons(None, {"measure": "progress", "threshold": 0.5, "min_lesson_length": 1}, None),
            "lesson 2 of 3 'b': progress 0.00, needs > 0.50; 0 of 1 episodes",
        ),
    ],
)
def test_sentences_of_all_kinds(given: list[Lesson], sentence: str) -> None:
    assert Run(first={"wall": min(1, len(given) - 1)}, wall=given).sentence == sentence


def test_somebody_may_move_to_another_lesson() -> None:
    run = Run(wall=lessons(plain(0.5, min_lesson_length=2), plain(0.5), None))
    run.ended(0)

    change = run.manager.move("wall", 2)

    assert (change.cause, change.old.lesson, change.new.lesson, change.must_reset) == ("edited", 1, 3, False)
    assert run.manager.samplers == {"wall": Constant(3.0)}
    assert run.manager.number == 1


def test_an_edited_value_stays_the_lessons() -> None:
    run = Run(wall=lessons(plain(0.5), plain(0.5, fall_back_below=0), None))
    run.ended(1)
    run.manager.replace("wall", 7.5)
    assert run.manager.samplers == {"wall": Constant(7.5)}

    run.ended(-1)
    assert run.manager.samplers == {"wall": Constant(1.0)}
    run.ended(1)

    assert run.manager.samplers == {"wall": Constant(7.5)}


def test_a_resumed_run_goes_on_where_the_checkpoint_was() -> None:
    def made() -> Run:
        criteria = {"threshold": 0.8, "min_lesson_length": 3}
        sampled = Lesson.model_validate({"name": "s", "value": {"sampler_type": "uniform", "sampler_parameters": {}}})
        return Run(wall=lessons(plain(0), criteria, None), plain=[sampled])

    def rest(run: Run) -> list[object]:
        numbers = []
        for value in (0.5, 1.0, 1.0, 1.0, 1.0):
            run.ended(value)
            numbers.append((run.manager.statuses(), run.manager.samplers, run.manager.lesson_numbers))
        return [numbers, run.lesson]

    first = made()
    first.ended(1)
    first.ended(0.9, 0.8)
    first.manager.replace("wall", 9.0)
    first.ended(0.9, 0.8)
    state = json.loads(json.dumps(first.manager.state_dict()))
    second = made()
    second.manager.load_state_dict(state)

    assert second.manager.statuses() == first.manager.statuses()
    assert second.manager.samplers == {"wall": Constant(9.0), "plain": Uniform(0.0, 1.0, -1)}
    assert rest(second) == rest(first)
    assert second.lesson == "c"


def mixed() -> Run:
    return Run(wall=lessons({"threshold": 5}, {"measure": SUCCESS, "threshold": 0.6}, {"threshold": 500}, None))


def test_a_checkpoint_keeps_what_each_measure_was_smoothed_to() -> None:
    first = mixed()
    first.ended(10)
    first.reported(SUCCESS, 0.5)
    second = mixed()
    second.manager.load_state_dict(json.loads(json.dumps(first.manager.state_dict())))

    for run in (first, second):
        assert run.reported(SUCCESS, 0.6) == []  # 0.25 * 0.5 + 0.75 * 0.6 = 0.575
        assert len(run.reported(SUCCESS, 0.7)) == 1
        run.ended(10)
        assert run.manager.statuses()[0].measured == 0.25 * 7.5 + 7.5


def test_an_older_checkpoints_one_number_counts_where_there_is_one_measure() -> None:
    only_rewards = Run(wall=lessons({"threshold": 5}, {"threshold": 500}, None))
    only_rewards.ended(10)
    run = mixed()
    run.ended(10)
    for each in (only_rewards, run):
        state = each.manager.state_dict()
        for parameter in state["parameters"]:
            parameter["smoothed"] = 7.5
            del parameter["watched"]
        each.manager.load_state_dict(state)

    only_rewards.ended(10)
    assert only_rewards.manager.statuses()[0].measured == 0.25 * 7.5 + 7.5
    assert run.reported(SUCCESS, 0.31) == []


def test_a_run_that_watches_something_else_in_the_checkpoints_lesson_begins_to_measure() -> None:
    old = Run(wall=lessons(plain(10, min_lesson_length=3), None))
    old.ended(5, 5)
    new = Run(wall=lessons(plain(0.6, measure=SUCCESS, min_lesson_length=3), None))

    new.manager.load_state_dict(old.manager.state_dict())

    assert new.manager.statuses()[0].episodes == 0
    assert new.reported(SUCCESS, 0.1) == []


def test_a_checkpoint_with_other_parameters_changes_only_what_it_knows() -> None:
    old = Run(wall=lessons(plain(0), plain(0), None), gone=lessons(plain(0), None))
    old.ended(1)
    new = Run(wall=lessons(plain(0), None), fresh=lessons(plain(0), None))

    new.manager.load_state_dict(old.manager.state_dict())

    assert new.manager.lesson_numbers == {"wall": 1, "fresh": 0}


STEPS = 4
NETWORK = {"hidden_units": 8, "num_layers": 1}
LESSON_NUMBER = "Environment/Lesson Number/difficulty"


class Graded(Simulation):
    """Episodes of four steps, each of which earns the difficulty of the episode. Half of them are a success."""

    behaviors = (BehaviorSpec("Pupil", (ObservationSpec((1,)),), ActionSpec(discrete_branches=(2,))),)

    def __init__(self) -> None:
        self.resets = 0
        self.played: list[float] = []
        """The difficulty of each episode."""
        self._tick = 0

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        self.resets += 1
        self._tick = 0
        self._begin(builder, start.parameters)
        builder.request_decision(0, [0.0])

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        if not len(actions):
            return
        self._tick += 1
        earned = self.played[-1]
        if self._tick == STEPS:
            builder.end_episode(0, [1.0], earned)
            builder.report("Environment/Success", len(self.played) % 2)
            self._tick = 0
            self._begin(builder, builder.parameters.draw())
            builder.request_decision(0, [0.0])
        else:
            builder.request_decision(0, [self._tick / STEPS], earned)

    def _begin(self, builder: StepBuilder, values: Mapping[str, float]) -> None:
        assert builder.parameters.keys() == {"difficulty", "wind"}
        self.played.append(values["difficulty"])


class Editing(Supervisor):
    """Passes edits on at once, and has seen enough with an event."""

    def __init__(self, edits: list[ParameterEdit] | None = None, games: int = 1, until: str = "") -> None:
        """`until` names the event."""
        self.games = [Graded() for _ in range(games)]
        super().__init__(*self.games)
        self.orders += [EditParameters(edits=edits)] if edits else []
        self._until = until

    def post(self, message: Message) -> None:
        super().post(message)
        if isinstance(message, EventRecord) and message.name == self._until:
            self.orders.append(Command(action="stop"))

    def states(self) -> ParameterStates:
        states: ParameterStates = self.of(ParameterStates)[-1]
        return states


def lesson(value: float, **criteria: Any) -> dict[str, Any]:
    made = {"name": f"of {value}", "value": value}
    return made | ({"completion_criteria": {"behavior": "Pupil", **criteria}} if criteria else {})


def train(
    scratch: Path, supervisor: Editing, *curriculum: dict[str, Any], max_steps: int = 512, resume: Path | None = None
) -> Finished:
    """Run an attempt to its end."""
    config = {
        "torch_settings": {"device": "cpu"},
        "behaviors": {
            "Pupil": {
                "hyperparameters": {"batch_size": 32, "num_epoch": 1, "buffer_size": 64},
                "network_settings": NETWORK,
                "max_steps": max_steps,
                "summary_freq": 64,
                "checkpoint_interval": 128,
            }
        },
        "environment_parameters": {
            "difficulty": {"curriculum": list(curriculum)},
            "wind": {"sampler_type": "uniform", "sampler_parameters": {"seed": 3}},
        },
    }
    job = Job(
        run_id="alone",
        attempt=1,
        config=config,
        seed=1,
        scratch=str(scratch),
        resume_from=None if resume is None else str(resume),
    )
    finished = Trainer(job, supervisor, []).run()
    supervisor.join()
    return finished


@pytest.mark.timeout(120)
def test_lessons_change_while_a_run_goes_on(tmp_path: Path) -> None:
    supervisor = Editing(games=2)

    finished = train(
        tmp_path,
        supervisor,
        lesson(1.0, min_lesson_length=20, threshold=3.9, signal_smoothing=False),
        lesson(2.0, min_lesson_length=5, threshold=7.9, signal_smoothing=False, require_reset=True),
        lesson(3.0),
    )

    assert (finished.outcome, finished.reason) == ("succeeded", "completed")
    (begun,) = supervisor.named("lessons_began")
    assert begun.data["log_lines"] == [
        "Parameter 'difficulty' is in lesson 'of 1.0' and has value 'Float: value=1.0'.",
        "Parameter 'wind' is in lesson 'wind' and has value 'Uniform sampler: min=0.0, max=1.0'.",
    ]
    first, second = supervisor.named("lesson_changed")
    line = "Parameter 'difficulty' is in lesson 'of 2.0' and has value 'Float: value=2.0'."
    assert first.data["log_line"] == line
    assert first.message == (
        f"{line} Completed: lesson 1 of 3 'of 1.0': reward 4.00, needs > 3.90; 20 of 20 episodes. "
        "Now: lesson 2 of 3 'of 2.0': no reward yet, needs > 7.90; 0 of 5 episodes."
    )
    assert (first.data["parameter"], first.data["cause"], first.data["reset"]) == ("difficulty", "completed", False)
    assert (first.data["old"]["lesson"], first.data["new"]["lesson"]) == (1, 2)  # type: ignore[index]  # JSON
    assert second.data["reset"] is True
    for game in supervisor.games:
        assert game.resets == 2, "the second change asked for it, the first did not"
        assert game.played == sorted(game.played)
        assert set(game.played) == {1.0, 2.0, 3.0}
    numbers = supervisor.series(LESSON_NUMBER)
    assert [value for _, value in numbers] == sorted(value for _, value in numbers)
    assert {value for _, value in numbers} == {0.0, 1.0, 2.0}
    summaries = [step for step, _ in supervisor.series("Environment/Cumulative Reward")]
    assert {step for step, _ in numbers} >= set(summaries), "every summary has it"
    assert [value for _, value in supervisor.series("Environment/Lesson Number/wind")][-1] == 0.0
    assert [state["waits_for"] for state in supervisor.states().parameters] == [
        "lesson 3 of 3 'of 3.0': the last one",
        "no curriculum: Uniform sampler: min=0.0, max=1.0",
    ]


@pytest.mark.timeout(120)
def test_a_resumed_run_goes_on_in_its_lesson_and_with_its_edits(tmp_path: Path) -> None:
    curriculum = (
        lesson(1.0, min_lesson_length=5, threshold=3.9),
        lesson(2.0, min_lesson_length=1000, threshold=7.9),
        lesson(3.0),
    )
    edits = [ParameterEdit(seq=1, parameter="wind", value=0.5), ParameterEdit(seq=2, parameter="difficulty", lesson=2)]
    first = Editing(edits)
    train(tmp_path / "first", first, *curriculum, max_steps=256)
    (told, moved) = [*first.named("parameter_changed"), *first.named("lesson_changed")]
    assert "Changed by a user; before: no curriculum: Uniform sampler: min=0.0, max=1.0" in told.message
    assert (told.data["old"]["value"], told.data["new"]["value"]) != (0.5, 0.5)  # type: ignore[index]  # JSON
    assert told.data["new"]["value"] == 0.5  # type: ignore[index]  # JSON
    assert (moved.data["cause"], moved.data["old"]["lesson"], moved.data["new"]["lesson"]) == ("edited", 1, 2)  # type: ignore[index]  # JSON
    saved = checkpoint.load(first.folders[-1])[ENVIRONMENT_PARAMETERS]
    episodes = len(saved["manager"]["parameters"][0]["values"])
    assert episodes > 10

    again = [*edits, ParameterEdit(seq=3, parameter="difficulty", value=2.5)]
    second = Editing(again)
    train(tmp_path / "second", second, *curriculum, max_steps=512, resume=first.folders[-1])

    assert second.named("lesson_changed") == []
    (begun,) = second.named("lessons_began")
    assert "Parameter 'difficulty' is in lesson 'of 2.0' and has value" in begun.message
    assert "Parameter 'wind' is in lesson 'wind' and has value 'Float: value=0.5'." in begun.message
    (changed,) = second.named("parameter_changed")
    assert changed.data["parameter"] == "difficulty", "what the checkpoint knows is not done again"
    assert changed.data["old"]["episodes"] >= episodes  # type: ignore[index]  # JSON
    assert set(second.games[0].played) <= {2.0, 2.5}
    assert second.games[0].played[-1] == 2.5
    assert second.states().edit == 3


@pytest.mark.timeout(120)
def test_reported_success_ends_a_lesson_and_a_metric_that_never_comes_is_told(tmp_path: Path) -> None:
    supervisor = Editing(until="lesson_measure_missing")

    train(
        tmp_path,
        supervisor,
        lesson(1.0, measure="Environment/Success", min_lesson_length=10, threshold=0.4, signal_smoothing=False),
        lesson(2.0, measure="Environment/Sucess", threshold=0.4),
        lesson(3.0),
        max_steps=100_000,
    )

    (change,) = supervisor.named("lesson_changed")
    assert change.data["old"]["measured"] == pytest.approx(0.5, abs=0.1)  # type: ignore[index]  # JSON
    (missing,) = supervisor.named("lesson_measure_missing")
    assert missing.level == "warning"
    assert "no simulator has reported 'Environment/Sucess' in 100 episodes" in missing.message
    assert missing.data == {"parameter": "difficulty", "measure": "Environment/Sucess"}
