"""The assessment of an attempt's run: the policies to evaluate, and the counts so far."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ludus.config.assessment import TrainedPolicy, checkpoints_of
from ludus.config.run import RunConfig
from server.assessments.repository import AssessmentRepository
from server.kit.errors import CheckpointNotFound
from server.runs.attempts.repository import AttemptFence


class AssessmentWriter:
    """Reads and writes the assessment of one attempt's run. Reads are not fenced."""

    def __init__(self, fence: AttemptFence) -> None:
        self._fence = fence

    def policies(self, config: RunConfig) -> dict[str, TrainedPolicy]:
        """Return how the policies under test were trained, by checkpoint; deleted ones are left out.

        `config`: the configuration of the attempt's run.
        """
        if config.assessment is None:
            return {}
        with self._fence.database.read() as session:
            assessed = AssessmentRepository(session)
            found = {}
            for each in checkpoints_of(config.assessment).values():
                with suppress(CheckpointNotFound):
                    found[each] = assessed.policy(each, config.assessment.behavior)
            return found

    def state(self) -> dict[str, Any] | None:
        """Return the counts of earlier attempts; None if there are none."""
        with self._fence.database.read() as session:
            row = AssessmentRepository(session).find(self._fence.run_id)
            return None if row is None else dict(row.state)

    def store(self, games: int, result: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Store the present counts. More games than before refill the restart budget. Raises LeaseLost."""
        with self._fence.write() as (session, run):
            if AssessmentRepository(session).store(run.id, self._fence.number, games, result, state):
                run.restarts_without_progress = 0
