"""Assessments in the database, one row per run; the policies that they judge, and what an attempt writes."""

from collections.abc import Mapping
from contextlib import suppress

from sqlalchemy import ForeignKey, Integer, String, select
from sqlalchemy.orm import Mapped, load_only, mapped_column

from ludus.config.assessment import TrainedPolicy, checkpoints_of
from ludus.config.run import RunConfig
from ludus.config.trainer import TrainerConfig
from server.checkpoints.models import Checkpoint
from server.kit.db.base import Base, Json, Timestamp
from server.kit.db.clock import now
from server.kit.db.repository import Repository
from server.kit.db.texts import JsonObject
from server.kit.errors import AssessmentNotFound, CheckpointNotFound
from server.runs.attempts import AttemptFence
from server.runs.models import Run


class RunAssessment(Base):
    """Where an assessment stands. Written as a whole each time, so that nothing can count twice."""

    __tablename__ = "run_assessments"

    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer)
    """Attempt that wrote it."""
    verdict: Mapped[str | None] = mapped_column(String(16))
    """`pass`, `fail` or `undecided`; None while it goes on."""
    games: Mapped[int] = mapped_column(Integer)
    """Games, or episodes, that are counted."""
    result: Mapped[JsonObject] = mapped_column(Json)
    """The JSON form of `ludus.schemas.MatchResult` or `EvaluationResult`."""
    state: Mapped[JsonObject] = mapped_column(Json)
    """The trainer's counts, from which the next attempt continues."""
    updated_at: Mapped[float] = mapped_column(Timestamp)


class AssessmentRepository(Repository):
    """Assessments."""

    def find(self, run_id: str) -> RunAssessment | None:
        """Return where a run's assessment stands; None if it has not begun, or there is none."""
        return self._session.get(RunAssessment, run_id)

    def get(self, run_id: str) -> RunAssessment:
        """Return the same. Raises AssessmentNotFound."""
        assessment = self.find(run_id)
        if assessment is None:
            raise AssessmentNotFound(run_id)
        return assessment

    def store(
        self, run_id: str, attempt: int, games: int, result: Mapping[str, object], state: Mapping[str, object]
    ) -> bool:
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
            policies = {}
            for checkpoint in checkpoints_of(config.assessment).values():
                with suppress(CheckpointNotFound):
                    policies[checkpoint] = assessed.policy(checkpoint, config.assessment.behavior)
            return policies

    def state(self) -> JsonObject | None:
        """Return the counts of earlier attempts; None if there are none."""
        with self._fence.database.read() as session:
            row = AssessmentRepository(session).find(self._fence.run_id)
            return None if row is None else dict(row.state)

    def store(self, games: int, result: Mapping[str, object], state: Mapping[str, object]) -> None:
        """Store the present counts. More games than before refill the restart budget. Raises LeaseLost."""
        with self._fence.write() as (session, run):
            if AssessmentRepository(session).store(run.id, self._fence.number, games, result, state):
                run.restarts_without_progress = 0
