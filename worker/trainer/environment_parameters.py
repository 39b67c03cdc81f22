"""The environment parameters of a run: lessons as ML-Agents' `EnvironmentParameterManager` has them, and their changes.

A lesson ends when its measure lies strictly above the threshold, with at least `min_lesson_length` episodes in the
buffer. `reward` is the mean of the buffer, `progress` the steps of the behavior over its `max_steps`, `Elo` its rating;
any other measure is the mean of the newest values of the metric of that name. With `signal_smoothing` the measure is a
quarter of the last measure and three quarters of the new mean; that of `reward` begins at 0, and no change of lessons
resets it. A buffer holds as many episodes as the longest lesson of its behavior asks for. Any change of a lesson
empties all buffers (ML-Agents 1.1.0, `environment_parameter_manager.py` and `settings.py`).

Deviations, on purpose:

1. ML-Agents looks after every step of the environment, so that how often a measure is smoothed depends on how long
   episodes are and how many environments play. Here it is looked at once for each episode that counts (of a metric:
   once for each report of new values; `progress`: with new steps, too).
2. Only episodes that began under the present lesson count, unless `count_all_episodes` is set: every set of parameters
   that simulators get has a number, and an episode carries the number that its simulator knew when it began.
3. `fall_back_below`: the lesson before begins again when the measure of a full buffer is below it.
4. Each measure of each behavior is smoothed by itself: a lesson that watches another measure, or another behavior, than
   the lesson before does not go on from that one's number. ML-Agents has one number for each parameter, and no measure
   but `reward` that is smoothed. Other measures begin at their first mean: 0 would be a number that was not measured.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Final, Literal

from ludus.collector.messages import SimulatorStarted, StatsReported
from ludus.config.curriculum import log_line, status_of, value_from_plain, value_to_plain
from ludus.config.environment_parameters import MEASURES, CompletionCriteria, Lesson, Sampler, sampler_of
from ludus.protocol.environment_parameters import ParameterValue
from ludus.schemas import EnvironmentParameter
from worker.collectors.events import CollectorEvent, EpisodesEnded, SegmentsDelivered
from worker.experience.state import State
from worker.trainer.attempt import Attempt
from worker.trainer.messages import EditParameters, ParameterStates
from worker.trainer.recorder import CUMULATIVE_REWARD, EPISODE_LENGTH, GROUP_REWARD

MISSING_EPISODES: Final = 100
"""After so many finished episodes a metric that was never reported is reported as missing."""
EPISODE_MEASURES: Final = ("reward", CUMULATIVE_REWARD, EPISODE_LENGTH, GROUP_REWARD)
"""Measures that every finished episode has, without being reported."""

Cause = Literal["completed", "fell_back", "edited"]


@dataclass(frozen=True)
class LessonChange:
    """One parameter's step from a lesson to another, or to another value."""

    parameter: str
    cause: Cause
    old: EnvironmentParameter
    new: EnvironmentParameter
    log_line: str
    """As ML-Agents logs it."""
    must_reset: bool
    """Whether all simulators begin new episodes at once."""


@dataclass
class _Parameter:
    """One parameter's state."""

    name: str
    lessons: Sequence[Lesson]
    lesson: int
    """Index from 0."""
    size: int = 1
    """Episodes that the buffer holds."""
    since: int = 0
    """Number of the first set of parameters with the present lesson."""
    smoothed: dict[tuple[str, str], float] = field(default_factory=dict)
    """The newest smoothed measures, by behavior and measure."""
    measured: float | None = None
    """The newest measure of the present lesson."""
    values: deque[float] = field(default_factory=deque)
    """The buffer: the newest values of the measure, oldest first."""
    replaced: dict[int, float | Sampler] = field(default_factory=dict)
    """By lesson: values that were edited while the run went on."""
    unheard: int = 0
    """Episodes that ended before the measured metric was first reported."""

    @property
    def value(self) -> float | Sampler:
        return self.replaced.get(self.lesson, self.lessons[self.lesson].value)

    @property
    def criteria(self) -> CompletionCriteria | None:
        """The criteria that end the present lesson; None without any. The last lesson has some if it can fall back."""
        criteria = self.lessons[self.lesson].completion_criteria
        if criteria is not None and self.is_last and criteria.fall_back_below is None:
            return None
        return criteria

    @property
    def is_last(self) -> bool:
        return self.lesson == len(self.lessons) - 1

    def empty(self) -> None:
        self.values = deque(maxlen=self.size)
        self.measured = None

    def enter(self, lesson: int, since: int) -> None:
        self.lesson = lesson
        self.since = since
        self.unheard = 0


class EnvironmentParameterManager:
    """The lessons of all parameters of a run, as a state machine without clock or I/O."""

    def __init__(
        self,
        lessons: Mapping[str, Sequence[Lesson]],
        first: Mapping[str, int] | None = None,
        *,
        progress: Callable[[str], float | None],
        rating: Callable[[str], float | None],
    ) -> None:
        """Begin with the lessons of `first` (indices from 0), by default each parameter's first.

        `progress(behavior)` returns steps / `max_steps`, or None as long as the behavior has no trainer: its criteria
        wait so long. `rating(behavior)` returns the Elo rating of a behavior in self-play, None as long as it has none.
        """
        self._progress = progress
        self._rating = rating
        self._parameters = {
            name: _Parameter(name, steps, (first or {}).get(name, 0)) for name, steps in lessons.items()
        }
        self.number = 0
        """Number of the present set of parameters; counts changes."""
        self._missing: list[EnvironmentParameter] = []
        self.sizes: dict[str, int] = {}
        """Episodes of each behavior that its criteria need at most."""
        for criteria in (lesson.completion_criteria for steps in lessons.values() for lesson in steps):
            if criteria is not None:
                size = self.sizes.get(criteria.behavior, 1)
                self.sizes[criteria.behavior] = max(size, criteria.min_lesson_length)
        for parameter in self._parameters.values():
            self._fit(parameter)

    @property
    def samplers(self) -> dict[str, ParameterValue]:
        """The present samplers or values, by parameter."""
        return {name: sampler_of(parameter.value) for name, parameter in self._parameters.items()}

    @property
    def lesson_numbers(self) -> dict[str, int]:
        """ML-Agents' `lesson_num` of each parameter, from 0."""
        return {name: parameter.lesson for name, parameter in self._parameters.items()}

    @property
    def log_lines(self) -> list[str]:
        """Where each parameter is, as ML-Agents logs it when training begins, in the configuration's order."""
        return [
            log_line(parameter.name, parameter.lessons[parameter.lesson].name, parameter.value)
            for parameter in self._parameters.values()
        ]

    def statuses(self) -> list[EnvironmentParameter]:
        """Return where each parameter is, in the configuration's order."""
        return [self._status(parameter) for parameter in self._parameters.values()]

    def take_missing(self) -> list[EnvironmentParameter]:
        """Return the parameters whose metric has not been reported for `MISSING_EPISODES` episodes, each once."""
        missing, self._missing = self._missing, []
        return missing

    def episodes_ended(self, event: EpisodesEnded) -> list[LessonChange]:
        """Take finished episodes of one behavior, one after the other; return the changes of lessons."""
        if not self._watching(event.behavior):
            return []
        changes: list[LessonChange] = []
        for number, reward, *measures in event.records[["parameter_set", "return", "length", "group_return"]].tolist():
            values = dict(zip(EPISODE_MEASURES, (reward, reward, *measures), strict=True))
            due = [
                parameter
                for parameter in self._watching(event.behavior)
                if self._counts(parameter, number) and self._note_episode(parameter, values)
            ]
            changes += self._check(due)
        return changes

    def stats_reported(self, event: StatsReported) -> list[LessonChange]:
        """Take values of a metric that simulators reported; return the changes of lessons."""
        due = []
        if event.key in EPISODE_MEASURES:
            return []
        for parameter in self._parameters.values():
            criteria = parameter.criteria
            if criteria is None or criteria.measure != event.key or not self._counts(parameter, event.parameter_set):
                continue
            parameter.unheard = -1
            mean = event.total / event.count
            parameter.values.extend(event.values or [mean] * min(event.count, parameter.size))
            due.append(parameter)
        return self._check(due)

    def advanced(self, behavior: str) -> list[LessonChange]:
        """Check the lessons that wait for a behavior's progress; return their changes."""
        return self._check(
            [
                parameter
                for parameter in self._watching(behavior)
                if parameter.criteria is not None and parameter.criteria.measure == "progress"
            ]
        )

    def move(self, parameter: str, lesson: int) -> LessonChange:
        """Begin a lesson (index from 0) at a user's request."""
        change = self._change(self._parameters[parameter], lesson, "edited", must_reset=False)
        self._begin_set()
        return change

    def replace(self, parameter: str, value: float | Sampler) -> LessonChange:
        """Give the present lesson of a parameter another value, which stays the lesson's."""
        changed = self._parameters[parameter]
        change = self._change(changed, changed.lesson, "edited", must_reset=False, value=value)
        self._begin_set()
        return change

    def state_dict(self) -> State:
        """Return the state for a checkpoint. Episodes may outlive it, so sets keep their numbers."""
        return {
            "number": self.number,
            "parameters": [
                {
                    "name": parameter.name,
                    "lesson": parameter.lesson,
                    "since": parameter.since,
                    "smoothed": [[*watched, value] for watched, value in parameter.smoothed.items()],
                    "watched": None if parameter.criteria is None else list(_watched(parameter.criteria)),
                    "measured": parameter.measured,
                    "values": list(parameter.values),
                    "unheard": parameter.unheard,
                    "replaced": [[lesson, value_to_plain(value)] for lesson, value in parameter.replaced.items()],
                }
                for parameter in self._parameters.values()
            ],
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from the result of `state_dict`. Parameters that it does not know stay as they are."""
        self.number = state.get("number", 0)  # older checkpoints have none
        for saved in state["parameters"]:
            parameter = self._parameters.get(saved["name"])
            if parameter is None or saved["lesson"] >= len(parameter.lessons):
                continue
            parameter.enter(saved["lesson"], saved.get("since", 0))
            self._fit(parameter)
            if isinstance(smoothed := saved["smoothed"], list):
                parameter.smoothed = {(behavior, measure): value for behavior, measure, value in smoothed}
            else:  # older checkpoints have one number: of use only where all lessons measure the same
                criteria = [lesson.completion_criteria for lesson in parameter.lessons]
                measures = {_watched(criterion) for criterion in criteria if criterion is not None}
                parameter.smoothed = {measures.pop(): smoothed} if len(measures) == 1 else {}
            watched = None if parameter.criteria is None else list(_watched(parameter.criteria))
            # A run that begins with another's checkpoint may watch something else.
            if watched == saved.get("watched", watched):
                parameter.measured = saved["measured"]
                parameter.values.extend(saved["values"])
                parameter.unheard = saved["unheard"]
            parameter.replaced = {lesson: value_from_plain(value) for lesson, value in saved["replaced"]}

    def _watching(self, behavior: str) -> list[_Parameter]:
        """Return the parameters whose present lesson watches a behavior that has a trainer."""
        if self._progress(behavior) is None:
            return []
        return [
            parameter
            for parameter in self._parameters.values()
            if parameter.criteria is not None and parameter.criteria.behavior == behavior
        ]

    def _counts(self, parameter: _Parameter, number: int) -> bool:
        """Whether an episode that began under this set of parameters counts for the present lesson."""
        assert parameter.criteria is not None
        return parameter.criteria.count_all_episodes or number >= parameter.since

    def _note_episode(self, parameter: _Parameter, values: Mapping[str, float]) -> bool:
        """Put an episode into a parameter's buffer; return whether its criteria are to be looked at."""
        assert parameter.criteria is not None
        measure = parameter.criteria.measure
        if measure in values or measure in MEASURES:
            # The length of the buffer is what counts for progress and Elo, as in ML-Agents.
            parameter.values.append(values.get(measure, values["reward"]))
            return True
        if parameter.unheard >= 0:
            parameter.unheard += 1
            if parameter.unheard == max(MISSING_EPISODES, parameter.criteria.min_lesson_length):
                self._missing.append(self._status(parameter))
        return False

    def _check(self, due: Iterable[_Parameter]) -> list[LessonChange]:
        """Look at the criteria of some parameters; each makes one step at most."""
        changes = []
        for parameter in due:
            step, criteria = self._step(parameter), parameter.criteria
            if step and criteria is not None:
                cause: Cause = "completed" if step > 0 else "fell_back"
                changes.append(self._change(parameter, parameter.lesson + step, cause, criteria.require_reset))
        if changes:
            self._begin_set()
        return changes

    def _step(self, parameter: _Parameter) -> int:
        """Return by how many lessons a parameter moves: 1, 0 or -1."""
        criteria = parameter.criteria
        if criteria is None or self._progress(criteria.behavior) is None:
            return 0
        if len(parameter.values) < criteria.min_lesson_length:
            return 0
        measure = self._measure(parameter, criteria)
        if measure is None or not math.isfinite(measure):
            return 0
        if criteria.signal_smoothing and criteria.measure != "progress":
            measure = parameter.smoothed[_watched(criteria)] = _smooth(parameter, criteria, measure)
        parameter.measured = measure
        if not parameter.is_last and measure > criteria.threshold:
            return 1
        is_full = len(parameter.values) >= parameter.size
        lowest = criteria.fall_back_below
        return -1 if lowest is not None and is_full and parameter.lesson > 0 and measure < lowest else 0

    def _measure(self, parameter: _Parameter, criteria: CompletionCriteria) -> float | None:
        """Return the measure that is compared with the threshold, before smoothing; None before the first value."""
        match criteria.measure:
            case "progress":
                return self._progress(criteria.behavior)
            case "Elo":
                return self._rating(criteria.behavior)
            case _:
                return fmean(parameter.values) if parameter.values else None

    def _change(
        self,
        parameter: _Parameter,
        lesson: int,
        cause: Cause,
        must_reset: bool,
        value: float | Sampler | None = None,
    ) -> LessonChange:
        """Begin a lesson, with a new value if one is given."""
        old = self._status(parameter)
        if value is not None:
            parameter.replaced[lesson] = value
        parameter.enter(lesson, self.number + 1)
        parameter.empty()
        line = log_line(parameter.name, parameter.lessons[lesson].name, parameter.value)
        return LessonChange(parameter.name, cause, old, self._status(parameter), line, must_reset)

    def _begin_set(self) -> None:
        """Give the new set of parameters its number, and empty all buffers."""
        self.number += 1
        for parameter in self._parameters.values():
            self._fit(parameter)

    def _fit(self, parameter: _Parameter) -> None:
        """Empty a buffer and give it the size that the present lesson's behavior needs."""
        criteria = parameter.criteria
        parameter.size = 1 if criteria is None else self.sizes[criteria.behavior]
        parameter.empty()

    def _status(self, parameter: _Parameter) -> EnvironmentParameter:
        criteria = parameter.criteria
        measured = None if criteria is None else parameter.measured
        # Of a short buffer the measure that it would have if it were long enough; progress changes all the time.
        if criteria is not None and (measured is None or criteria.measure == "progress"):
            measured = self._measure(parameter, criteria)
            if measured is not None and criteria.measure != "progress" and criteria.signal_smoothing:
                measured = _smooth(parameter, criteria, measured)
        return status_of(
            parameter.name,
            parameter.lessons,
            parameter.lesson,
            parameter.value,
            measured=measured,
            episodes=len(parameter.values),
            trained=criteria is not None and self._progress(criteria.behavior) is not None,
        )


def _watched(criteria: CompletionCriteria) -> tuple[str, str]:
    """Name the measure of some criteria: another behavior's is another measure."""
    return criteria.behavior, criteria.measure


def _smooth(parameter: _Parameter, criteria: CompletionCriteria, mean: float) -> float:
    """Return the smoothed measure that follows from a new mean; it is not kept."""
    last = parameter.smoothed.get(_watched(criteria), 0.0 if criteria.measure == "reward" else None)
    return mean if last is None else 0.25 * last + 0.75 * mean


STATUS_SECONDS: Final = 2.0
"""How often lessons and values are reported, if they have changed."""
CAUSES: Final = {"completed": "Completed", "fell_back": "Fell back from", "edited": "Changed by a user; before"}


class EnvironmentParameters:
    """The environment parameters of one attempt: changes of lessons reach simulators, events and metrics."""

    def __init__(self, attempt: Attempt, rating: Callable[[str], float | None], saved: State | None) -> None:
        """`rating` returns the Elo rating of a behavior in self-play, None for others.

        `saved` is the result of `state` in a checkpoint, None without one.
        """
        self._attempt = attempt
        config = attempt.config
        self._manager = EnvironmentParameterManager(
            config.with_seed(attempt.job.seed).lessons(),
            config.first_lessons(),
            progress=self._progress,
            rating=rating,
        )
        self._edit = 0
        """Number of the newest edit that was applied."""
        if saved is not None:
            self._manager.load_state_dict(saved["manager"])
            self._edit = saved["edit"]
        attempt.pool.send_parameters(self._manager.samplers, self._manager.number)
        self._reported: ParameterStates | None = None
        self._next_report = 0.0
        self._begun = False

    @property
    def metrics(self) -> dict[str, float]:
        """The number of each parameter's lesson, from 0 as in ML-Agents, by the metric's name."""
        return {f"Environment/Lesson Number/{name}": number for name, number in self._manager.lesson_numbers.items()}

    def state(self) -> dict[str, object] | None:
        """Return the state for a checkpoint; None for a run without environment parameters."""
        return {"manager": self._manager.state_dict(), "edit": self._edit} if self._manager.samplers else None

    def handle(self, event: CollectorEvent) -> None:
        """Take an event of a collector, after the learners have."""
        match event:
            case EpisodesEnded():
                self._announce(self._manager.episodes_ended(event))
                for status in self._manager.take_missing():
                    count = max(MISSING_EPISODES, status.min_lesson_length)
                    message = (
                        f"Parameter '{status.name}', {status.waits_for}: no simulator has reported {status.measure!r} "
                        f"in {count} episodes, so that the lesson cannot end. Report it (`turn.report`, in Unity "
                        "`StatsRecorder.Add`), or name a metric that is reported as the measure."
                    )
                    facts = {"parameter": status.name, "measure": status.measure}
                    self._attempt.report("lesson_measure_missing", message, level="warning", **facts)
            case StatsReported():
                self._announce(self._manager.stats_reported(event))
            case SegmentsDelivered():
                self.advanced(event.behavior)
            case SimulatorStarted() if not self._begun:  # as ML-Agents does, when the first simulator plays
                self._begun = True
                if lines := self._manager.log_lines:
                    self._attempt.report("lessons_began", " ".join(lines), log_lines=lines)
            case _:
                pass

    def advanced(self, behavior: str) -> None:
        """Check the lessons that wait for the progress of a behavior, which has learned."""
        self._announce(self._manager.advanced(behavior))

    def edit(self, message: EditParameters) -> None:
        """Apply users' edits, each once: those that the checkpoint knows are left out."""
        for edit in message.edits:
            if edit.seq <= self._edit:
                continue
            self._edit = edit.seq
            changes = []
            if edit.lesson is not None:
                changes.append(self._manager.move(edit.parameter, edit.lesson - 1))
            if edit.value is not None:
                changes.append(self._manager.replace(edit.parameter, value_from_plain(edit.value)))
            self._announce(changes)
        self.report(at_once=True)

    def report(self, *, at_once: bool = False) -> None:
        """Report the lesson and value of every parameter, if they have changed."""
        now = time.monotonic()
        if not at_once and now < self._next_report:
            return
        self._next_report = now + STATUS_SECONDS
        states = ParameterStates(parameters=[asdict(status) for status in self._manager.statuses()], edit=self._edit)
        if states != self._reported and (states.parameters or states.edit):
            self._reported = states
            self._attempt.supervisor.post(states)

    def _progress(self, behavior: str) -> float | None:
        learner = self._attempt.learners.get(behavior)
        return None if learner is None else learner.step / learner.config.max_steps

    def _announce(self, changes: Sequence[LessonChange]) -> None:
        """Send changed lessons to simulators, events and metrics."""
        if not changes:
            return
        pool, learners = self._attempt.pool, self._attempt.learners
        reset = any(change.must_reset for change in changes)
        pool.send_parameters(self._manager.samplers, self._manager.number, reset=reset)
        for change in changes:
            old, new = change.old, change.new
            name = "lesson_changed" if old.lesson != new.lesson else "parameter_changed"
            self._attempt.report(
                name,
                f"{change.log_line} {CAUSES[change.cause]}: {old.waits_for}. Now: {new.waits_for}.",
                parameter=change.parameter,
                cause=change.cause,
                old=asdict(old),
                new=asdict(new),
                reset=change.must_reset,
                log_line=change.log_line,
                steps={name: learner.step for name, learner in learners.items()},
            )
        for learner in learners.values():
            learner.recorder.write(learner.step, self.metrics)
