"""Sends the supervisor the findings about a run: the whole list, whenever it has changed."""

from collections.abc import Iterator
from datetime import UTC, datetime

from ludus.play.checks.facts import Fact
from ludus.schemas import Finding
from worker.trainer.attempt import Attempt
from worker.trainer.checkpoint import behavior_states
from worker.trainer.demonstrated import DemonstratedLearner
from worker.trainer.health.checks import from_configuration
from worker.trainer.health.monitor import HealthMonitor
from worker.trainer.learner import BehaviorLearner
from worker.trainer.messages import Findings


class HealthReports:
    """Collects the facts of all behaviors."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._since: dict[tuple[str, str], datetime] = {}
        """When each was found in this attempt, by code and behavior."""
        self._reviews = -1
        self._reported: list[tuple[str, Fact]] = []

    def monitor(self, behavior: str) -> HealthMonitor | None:
        """Return the monitor of a behavior; None of one that learns nothing here."""
        learner = self._attempt.learners.get(behavior)
        return learner.health if isinstance(learner, BehaviorLearner) else None

    def conclude(self) -> None:
        """Review all behaviors a last time, and report what holds at the end."""
        for behavior in self._attempt.learners:
            monitor = self.monitor(behavior)
            if monitor is not None:
                monitor.conclude()
        self.report()

    def report(self) -> None:
        """Report the findings if they have changed."""
        monitors = [monitor for name in self._attempt.learners if (monitor := self.monitor(name)) is not None]
        reviews = sum(monitor.reviews for monitor in monitors) + len(self._attempt.learners)
        if reviews == self._reviews:
            return
        self._reviews = reviews
        facts = list(self._facts())
        if facts == self._reported:
            return
        self._reported, now = facts, datetime.now(UTC)
        self._since = {(fact.code, name): self._since.get((fact.code, name), now) for name, fact in facts}
        findings = [
            Finding(
                code=fact.code,
                behavior=name,
                message=fact.message,
                remedy=fact.remedy,
                figures=fact.figures,
                since_step=fact.since or 0,
                since=self._since[fact.code, name],
            )
            for name, fact in facts
        ]
        self._attempt.supervisor.post(Findings(findings=findings))

    def _facts(self) -> Iterator[tuple[str, Fact]]:
        for name, state in behavior_states(self._attempt.restored).items():  # no simulator has brought them yet
            yield from ((name, Fact(*fact)) for fact in state.get("health", {}).get("facts", ()))
        for name, learner in self._attempt.learners.items():
            monitor = self.monitor(name)
            if monitor is not None:
                yield from ((name, fact) for fact in monitor.facts)
            elif isinstance(learner, DemonstratedLearner):
                yield from ((name, fact) for fact in from_configuration(learner.config))
