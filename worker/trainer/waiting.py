"""When a run pauses for want of simulators, and the sentence that it pauses with."""

import time

from ludus.schemas.states import StopReason
from worker.trainer.attempt import Attempt
from worker.trainer.clone import CloneLearner
from worker.trainer.messages import Outcome

Ending = tuple[Outcome, StopReason, str]
"""How the attempt ends: outcome, reason, sentence."""


class WaitingLimits:
    """The grace periods of `simulators` in the configuration."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._idle_since: float | None = None
        """Since when simulators play, but none plays a behavior that has something left to learn."""

    def without_simulators(self) -> Ending | None:
        """Return the end after too long without a simulator; None while to wait, or while something can be learned."""
        attempt, simulators = self._attempt, self._attempt.simulators
        learners = attempt.learners.values()
        if simulators or any(learner.ready for learner in learners):
            return None
        if any(isinstance(learner, CloneLearner) and not learner.done for learner in learners):
            return None  # its evaluation waits for a simulator, with a limit of its own
        limits = attempt.config.simulators
        grace = limits.grace_seconds if simulators.any_came else limits.startup_grace_seconds
        if grace is None or time.monotonic() - simulators.absent_since < grace:
            return None
        if attempt.is_inference and simulators.any_came:
            return "succeeded", StopReason.COMPLETED, "no simulator plays any more, and the run does not learn"
        if simulators.any_came:
            why = f"all simulators have been gone for {grace:g} s (simulators.grace_seconds)"
        else:
            why = f"no simulator has come within {grace:g} s (simulators.startup_grace_seconds)"
        run = attempt.job.run_id
        start = f"start one (`ludus simulate GAME --run {run}` or `ludus unity {run}`)"
        resume = f"`ludus run resume {run}`"
        if limits.unity_port is not None:  # the port is closed while the run is paused: no build can wake it
            remedy = f"{resume}, then let the build connect to port {limits.unity_port} of the worker"
        elif limits.auto_resume:
            remedy = f"{start}, and the run goes on by itself"
        else:
            remedy = f"{start}, and resume the run: {resume}"
        return "paused", StopReason.SIMULATORS_LOST, f"{why}; {remedy}"

    def without_behaviors(self) -> Ending | None:
        """Return how to end after simulators have for too long played only behaviors with nothing left to learn.

        A configured behavior that no simulator plays would otherwise keep the run, and its slot, without end. Reports
        an event when such a wait begins.
        """
        attempt, learners = self._attempt, self._attempt.learners
        unfinished = attempt.unfinished()
        is_idle = (
            bool(unfinished)
            and bool(learners)  # a game with refused behaviors alone plays until it reads so
            and attempt.config.assessment is None
            and not attempt.is_inference
            and attempt.simulators.any_plays
            and not any(
                attempt.simulators.is_played(name) or isinstance(learners.get(name), CloneLearner)
                for name in unfinished
            )
        )
        if not is_idle:
            self._idle_since = None
            return None
        now = time.monotonic()
        names = ", ".join(unfinished)
        grace = attempt.config.simulators.startup_grace_seconds
        if self._idle_since is None:
            self._idle_since = now
            then = "without limit" if grace is None else f"for {grace:g} s, and then pauses"
            attempt.report(
                "behavior_missing",
                f"No simulator plays {names}; all else has been learned. The run waits for one that does, {then} "
                "(simulators.startup_grace_seconds)",
                level="warning",
                behaviors=unfinished,
            )
        if grace is None or now - self._idle_since < grace:
            return None
        run = attempt.job.run_id
        detail = (
            f"no simulator has played {names} for {grace:g} s (simulators.startup_grace_seconds), and all else has "
            f"been learned; resume the run (`ludus run resume {run}`) and start a simulator that plays it, or end it "
            f"with what it has learned: `ludus run stop {run}`"
        )
        return "paused", StopReason.BEHAVIOR_MISSING, detail
