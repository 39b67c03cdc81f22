"""Environment parameters while a run goes on: lessons that change, told to simulators, events, metrics and people."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from ludus.protocol.environment_parameters import ParameterValue
from server.config.config import RunConfig
from server.config.lessons import value_from_plain
from worker.collectors.notices import EpisodesEnded, Notice, SegmentsDelivered, SimulatorStarted, StatsReported
from worker.trainer.curriculum import MISSING_EPISODES, EnvironmentParameterManager, LessonChange
from worker.trainer.learner import Learner
from worker.trainer.link import EditParameters, ParameterEdit, ParameterStates
from worker.trainer.superior import Events, Superior

STATUS_SECONDS: Final = 2.0
"""How often where the lessons are is told, if it has changed."""


class Simulators(Protocol):
    """What lessons ask of the collectors: `worker.collectors.pool.CollectorPool`."""

    def reset(self, environment_parameters: Mapping[str, ParameterValue], parameter_set: int) -> None:
        """Make every simulator begin new episodes with these parameters."""

    def tell_parameters(self, environment_parameters: Mapping[str, ParameterValue], parameter_set: int) -> None:
        """Tell every simulator other parameters with its next answer."""


class Lessons:
    """The environment parameters of one attempt."""

    def __init__(
        self,
        config: RunConfig,
        seed: int,
        learners: Mapping[str, Learner],
        superior: Superior,
        rating: Callable[[str], float | None],
        saved: Mapping[str, Any] | None,
    ) -> None:
        """`learners` grows as behaviors come, and `rating` is the Elo rating of one in self-play.

        `saved` is what `state` returned for a checkpoint, None without one.
        """
        self._learners = learners
        self._superior = superior
        self._events = Events(superior)
        self._manager = EnvironmentParameterManager(
            config.with_seed(seed).lessons(), config.first_lessons(), progress=self._progress, rating=rating
        )
        self._edit = 0
        """Number of the newest edit that was carried out."""
        if saved is not None:
            self._manager.load_state_dict(saved["manager"])
            self._edit = saved["edit"]
        self._told: ParameterStates | None = None
        self._next_status = 0.0
        self._begun = False

    @property
    def samplers(self) -> Mapping[str, ParameterValue]:
        """What simulators are told now."""
        return self._manager.samplers

    @property
    def number(self) -> int:
        """Number of what simulators are told now."""
        return self._manager.number

    @property
    def metrics(self) -> dict[str, float]:
        """The number of each parameter's lesson, from 0 as in ML-Agents, by the metric's name."""
        return {f"Environment/Lesson Number/{name}": number for name, number in self._manager.lesson_numbers.items()}

    def state(self) -> dict[str, object]:
        """Return what a checkpoint must hold to go on from here."""
        return {"manager": self._manager.state_dict(), "edit": self._edit}

    def handle(self, notice: Notice, simulators: Simulators) -> None:
        """Take what collectors report, after the learners have."""
        match notice:
            case EpisodesEnded():
                self._apply(self._manager.episodes_ended(notice), simulators)
                self._tell_missing()
            case StatsReported():
                self._apply(self._manager.stats_reported(notice), simulators)
            case SegmentsDelivered():
                self.advanced(notice.behavior, simulators)
            case SimulatorStarted():
                self._begin()
            case _:
                pass

    def _begin(self) -> None:
        """Tell where every parameter is when the first simulator of the attempt plays, as ML-Agents does."""
        lines = self._manager.log_lines
        if lines and not self._begun:
            self._event("lessons_began", " ".join(lines), {"log_lines": lines})
        self._begun = True

    def advanced(self, behavior: str, simulators: Simulators) -> None:
        """Take note that a behavior has made steps."""
        self._apply(self._manager.advanced(behavior), simulators)

    def edit(self, message: EditParameters, simulators: Simulators) -> None:
        """Do what somebody wants of the running run; what was done already, or before the checkpoint, is left out."""
        for edit in message.edits:
            if edit.seq > self._edit:
                self._edit = edit.seq
                self._apply(self._edited(edit), simulators)
        self.tell(at_once=True)

    def tell(self, *, at_once: bool = False) -> None:
        """Report where every parameter is, if that has changed."""
        now = time.monotonic()
        if not at_once and now < self._next_status:
            return
        self._next_status = now + STATUS_SECONDS
        states = ParameterStates(parameters=[each.to_plain() for each in self._manager.statuses()], edit=self._edit)
        if states != self._told and (states.parameters or states.edit):
            self._told = states
            self._superior.post(states)

    def _progress(self, behavior: str) -> float | None:
        learner = self._learners.get(behavior)
        return None if learner is None else learner.step / learner.config.max_steps

    def _edited(self, edit: ParameterEdit) -> list[LessonChange]:
        changes = []
        if edit.lesson is not None:
            changes.append(self._manager.move(edit.parameter, edit.lesson - 1))
        if edit.value is not None:
            changes.append(self._manager.replace(edit.parameter, value_from_plain(edit.value)))
        return changes

    def _apply(self, changes: Sequence[LessonChange], simulators: Simulators) -> None:
        """Carry changes to everyone who has to know."""
        if not changes:
            return
        tell = simulators.reset if any(change.must_reset for change in changes) else simulators.tell_parameters
        tell(self._manager.samplers, self._manager.number)
        for change in changes:
            self._event(_name(change), _message(change), _data(change))
        for learner in self._learners.values():
            learner.recorder.note(learner.step, self.metrics)

    def _tell_missing(self) -> None:
        for status in self._manager.take_missing():
            message = (
                f"Parameter '{status.name}', {status.waits_for}: no simulator has reported {status.measure!r} in "
                f"{max(MISSING_EPISODES, status.min_lesson_length)} episodes, so that the lesson cannot end. Report it "
                "(`turn.report`, in Unity `StatsRecorder.Add`), or name a metric that is reported as the measure."
            )
            self._event("lesson_measure_missing", message, {"parameter": status.name, "measure": status.measure}, True)

    def _event(self, name: str, message: str, data: dict[str, object], warns: bool = False) -> None:
        self._events.tell(name, message, level="warning" if warns else "info", data=data)


def _name(change: LessonChange) -> str:
    return "lesson_changed" if change.old.lesson != change.new.lesson else "parameter_changed"


def _message(change: LessonChange) -> str:
    why = {"completed": "Completed", "fell_back": "Fell back from", "edited": "Changed by a user; before"}[change.cause]
    return f"{change.log_line} {why}: {change.old.waits_for}. Now: {change.new.waits_for}."


def _data(change: LessonChange) -> dict[str, object]:
    return {
        "parameter": change.parameter,
        "cause": change.cause,
        "old": change.old.to_plain(),
        "new": change.new.to_plain(),
        "reset": change.must_reset,
        "log_line": change.log_line,
    }
