"""Assessments in the database, and the policies that they judge."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import load_only

from ludus.config.assessment import TrainedPolicy
from ludus.config.behavior import TrainerConfig
from server.assessments.models import RunAssessment
from server.checkpoints.models import Checkpoint
from server.kit.db.clock import now
from server.kit.db.repository import Repository
from server.kit.errors import AssessmentNotFound, CheckpointNotFound
from server.runs.models import Run


class AssessmentRepository(Repository):
    """Assessments."""

    def find(self, run_id: str) -> RunAssessment | None:
        """Return where a run's assessment stands; None if it has not begun, or there is none."""
        return self._session.get(RunAssessment, run_id)

    def get(self, run_id: str) -> RunAssessment:
        """Return the same. Raises AssessmentNotFound."""
        found = self.find(run_id)
        if found is None:
            raise AssessmentNotFound(run_id)
        return found

    def store(self, run_id: str, attempt: int, games: int, result: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
        """Write where an assessment stands; return whether it has more games than before."""
        before = self.find(run_id)
        counted = 0 if before is None else before.games
        row = RunAssessment(
            run_id=run_id,
            attempt=attempt,
            verdict=result.get("verdict"),
            games=games,
            result=dict(result),
            state=dict(state),
            updated_at=now(),
        )
        self._session.merge(row)
        self._session.flush()
        return games > counted

    def policy(self, checkpoint_id: str, behavior: str) -> TrainedPolicy:
        """Return how the policy of a behavior was trained.

        Raises CheckpointNotFound, also where the run of the checkpoint never trained the behavior.
        """
        query = select(Run).join(Checkpoint, Checkpoint.run_id == Run.id).where(Checkpoint.id == checkpoint_id)
        run = self._session.scalar(query.options(load_only(Run.config)))
        section: TrainerConfig | None = None if run is None else run.parsed_config.behavior(behavior)
        if section is None:
            raise CheckpointNotFound(checkpoint_id)
        return TrainedPolicy(trainer_type=section.trainer_type, network_settings=section.network_settings)
