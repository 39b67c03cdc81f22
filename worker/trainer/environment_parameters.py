"""The environment parameters of a run that goes on: changes of lessons reach simulators, events and metrics."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ludus.collector.messages import SimulatorStarted, StatsReported
from ludus.config.curriculum import value_from_plain
from worker.collectors.events import CollectorEvent, EpisodesEnded, SegmentsDelivered
from worker.trainer.attempt import Attempt
from worker.trainer.curriculum import MISSING_EPISODES, EnvironmentParameterManager, LessonChange
from worker.trainer.messages import EditParameters, ParameterStates

STATUS_SECONDS: Final = 2.0
"""How often lessons and values are reported, if they have changed."""

CAUSES: Final = {"completed": "Completed", "fell_back": "Fell back from", "edited": "Changed by a user; before"}


class EnvironmentParameters:
    """The environment parameters of one attempt."""

    def __init__(
        self, attempt: Attempt, rating: Callable[[str], float | None], saved: Mapping[str, Any] | None
    ) -> None:
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
                self._report_missing_measures()
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
        states = ParameterStates(parameters=[each.to_plain() for each in self._manager.statuses()], edit=self._edit)
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
                old=old.to_plain(),
                new=new.to_plain(),
                reset=change.must_reset,
                log_line=change.log_line,
                steps={name: learner.step for name, learner in learners.items()},
            )
        for learner in learners.values():
            learner.recorder.write(learner.step, self.metrics)

    def _report_missing_measures(self) -> None:
        for status in self._manager.take_missing():
            message = (
                f"Parameter '{status.name}', {status.waits_for}: no simulator has reported {status.measure!r} in "
                f"{max(MISSING_EPISODES, status.min_lesson_length)} episodes, so that the lesson cannot end. Report it "
                "(`turn.report`, in Unity `StatsRecorder.Add`), or name a metric that is reported as the measure."
            )
            self._attempt.report(
                "lesson_measure_missing", message, level="warning", parameter=status.name, measure=status.measure
            )
