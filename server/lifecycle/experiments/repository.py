"""Experiments in the database."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import ScalarSelect, case, func, select, text, update
from sqlalchemy.orm import InstrumentedAttribute, defer

from ludus.schemas.experiments import ExperimentState, TrialState, Used
from server.kit.db.clock import now
from server.kit.db.ids import new_id
from server.kit.db.keyset import Columns, by_name, parts, select_page
from server.kit.db.projects import DEFAULT, project_of
from server.kit.db.repository import Repository, upsert
from server.kit.db.texts import JsonObject
from server.kit.errors import NameAmbiguous
from server.kit.listing import ListQuery, Page
from server.lifecycle.experiments.models import ACTIVE_SQL, Experiment, Trial, TrialRun
from server.lifecycle.experiments.refs import ExperimentExists, ExperimentNotFound, TrialNotFound
from server.lifecycle.experiments.requests import read_spec
from server.runs.models import BEING_DELETED, Attempt, Run


class ExperimentRepository(Repository):
    """Experiments, their trials, and the runs of these."""

    COLUMNS: ClassVar[Columns] = by_name(
        Experiment.name, Experiment.state, Experiment.created_at, Experiment.finished_at
    )
    TRIAL_COLUMNS: ClassVar[Columns] = by_name(Trial.number, Trial.state, Trial.value)

    def get(self, experiment: str) -> Experiment:
        """Return the experiment with this id or name. Raises ExperimentNotFound, NameAmbiguous."""
        for same in (Experiment.id == experiment, Experiment.name == experiment):
            rows = self._session.scalars(select(Experiment).where(same).order_by(Experiment.project)).all()
            if len(rows) > 1:
                raise NameAmbiguous("experiment", experiment, {row.project: row.id for row in rows})
            if rows:
                return rows[0]
        raise ExperimentNotFound(experiment)

    def lock(self, experiment: str) -> Experiment:
        """Return an experiment, locked until the commit. Raises ExperimentNotFound, NameAmbiguous."""
        row = self._locked(select(Experiment).where(Experiment.id == self.get(experiment).id))
        if row is None:
            raise ExperimentNotFound(experiment)
        return row

    def lock_at(self, experiment_id: str, revision: int) -> Experiment | None:
        """Lock a running experiment if it has not changed since; None if it has, or another process holds it."""
        same = select(Experiment).where(
            Experiment.id == experiment_id,
            Experiment.revision == revision,
            Experiment.state == ExperimentState.RUNNING,
        )
        return self._locked(same, skip_locked=True)

    def list(self, query: ListQuery) -> Page[Experiment]:
        """Return a page of experiments."""
        return select_page(self._session, select(Experiment), query, self.COLUMNS, Experiment.id)

    def running(self) -> Sequence[tuple[str, str]]:
        """Return id and project of the experiments that run, oldest first."""
        query = select(Experiment.id, Experiment.project).where(text(ACTIVE_SQL)).order_by(Experiment.id)
        return [(experiment_id, project) for experiment_id, project in self._session.execute(query)]

    def insert(self, name: str, description: str, spec: JsonObject, config: JsonObject, token_id: str) -> Experiment:
        """Insert an experiment that runs. Raises ExperimentExists, also if another transaction takes the name now."""
        experiment_id = new_id("exp")
        values = upsert(self._session, Experiment).values(
            id=experiment_id,
            project=project_of(self._session) or DEFAULT,
            name=name,
            description=description,
            state=ExperimentState.RUNNING,
            detail="",
            spec=spec,
            source=json.dumps(config),
            revision=0,
            token_id=token_id,
            active_seconds=0.0,
            active_since=now(),
            created_at=now(),
        )
        inserted = values.on_conflict_do_nothing(index_elements=[Experiment.project, Experiment.name])
        if self._session.scalar(inserted.returning(Experiment.id)) is None:
            raise ExperimentExists(name)
        return self._session.get_one(Experiment, experiment_id)

    def move(self, experiment: Experiment, to: ExperimentState, detail: str = "") -> None:
        """Bring a locked experiment into another state; its time stands still unless it runs."""
        clock = self.clock()
        if experiment.active_since is not None:
            experiment.active_seconds += max(0.0, clock - experiment.active_since)
        runs = to is ExperimentState.RUNNING
        experiment.state, experiment.detail = to, detail
        experiment.active_since = clock if runs else None
        experiment.finished_at = clock if to is ExperimentState.FINISHED else None
        experiment.revision += 1

    def hold_up(self, experiment_id: str, detail: str) -> None:
        """Say in an experiment that runs why it does not go on at present."""
        same = Experiment.id == experiment_id, text(ACTIVE_SQL), Experiment.detail != detail
        self._session.execute(update(Experiment).where(*same).values(detail=detail))

    def trials(self, experiment_id: str, *states: TrialState) -> Sequence[Trial]:
        """Return the trials in some states, or all, by number."""
        query = select(Trial).where(Trial.experiment_id == experiment_id).order_by(Trial.number)
        return self._session.scalars(query.where(Trial.state.in_(states)) if states else query).all()

    def newest_ended(self, experiment: Experiment, limit: int) -> Sequence[Trial]:
        """Return the trials that ended last since the experiment began, or was resumed, the newest first."""
        query = select(Trial).where(
            Trial.experiment_id == experiment.id, Trial.finished_at >= (experiment.active_since or 0.0)
        )
        return self._session.scalars(query.order_by(Trial.finished_at.desc(), Trial.number.desc()).limit(limit)).all()

    def trial(self, experiment_id: str, number: int) -> Trial:
        """Return one trial. Raises TrialNotFound."""
        trial = self._session.get(Trial, (experiment_id, number))
        if trial is None:
            raise TrialNotFound(experiment_id, number)
        return trial

    def trial_page(self, experiment_id: str, query: ListQuery) -> Page[Trial]:
        """Return a page of trials. Those without a value come last in an order by value."""
        statement = select(Trial).where(Trial.experiment_id == experiment_id)
        return select_page(self._session, statement, query, self.TRIAL_COLUMNS, Trial.number)

    def runs_of(self, experiment_id: str, numbers: Sequence[int]) -> Mapping[int, Sequence[TrialRun]]:
        """Return the runs of trials as they are tried now, by trial, in the order of their seeds."""
        runs: dict[int, list[TrialRun]] = {number: [] for number in numbers}
        for part in parts(numbers):
            query = select(TrialRun).where(TrialRun.experiment_id == experiment_id, TrialRun.trial.in_(part))
            for run in self._session.scalars(query.where(TrialRun.seed >= 0).order_by(TrialRun.trial, TrialRun.seed)):
                runs[run.trial].append(run)
        return runs

    def open_runs(self, experiment_id: str) -> Sequence[TrialRun]:
        """Return the runs that still have to end, or to be evaluated, by trial and seed."""
        query = select(TrialRun).where(TrialRun.experiment_id == experiment_id, TrialRun.is_open)
        return self._session.scalars(query.order_by(TrialRun.trial, TrialRun.seed)).all()

    def set_aside(self, trial_run: TrialRun) -> None:
        """Make room for another run of a seed: the present one counts for the budget alone."""
        same = TrialRun.experiment_id == trial_run.experiment_id, TrialRun.trial == trial_run.trial
        trial_run.seed = min(0, self._session.scalars(select(func.min(TrialRun.seed)).where(*same)).one()) - 1
        self._session.flush()

    def present(self, run_ids: Sequence[str]) -> Mapping[str, Run]:
        """Return those of these runs that there are, without their configurations."""
        query = select(Run).where(Run.id.not_in(BEING_DELETED)).options(defer(Run.config))
        pages = (self._session.scalars(query.where(Run.id.in_(part))) for part in parts(run_ids))
        return {run.id: run for rows in pages for run in rows}

    def counts(self, experiment_id: str) -> Mapping[str, int]:
        """Return the number of trials in each state that trials have."""
        query = select(Trial.state, func.count()).where(Trial.experiment_id == experiment_id).group_by(Trial.state)
        counts = {state: count for state, count in self._session.execute(query)}  # noqa: C416  # rows are no pairs
        return {state: counts[state] for state in TrialState if state in counts}

    def used(self, experiment: Experiment) -> Used:
        """Return how much of its budget an experiment has used: of runs that are open, as of now."""
        trained = func.coalesce(_seconds(TrialRun.run_id), TrialRun.seconds)
        evaluated = func.coalesce(_seconds(TrialRun.assessment_id), 0.0)
        columns = (
            func.count(),
            func.sum(func.coalesce(Run.step, TrialRun.steps)),
            func.sum(TrialRun.gpus * case((Run.id.is_(None), TrialRun.seconds), else_=trained + evaluated)),
        )
        query = select(*columns).outerjoin(Run, (Run.id == TrialRun.run_id) & TrialRun.is_open)
        runs, steps, gpu_seconds = self._session.execute(query.where(TrialRun.experiment_id == experiment.id)).one()
        since = experiment.active_since
        return Used(
            runs=runs,
            steps=int(steps or 0),
            gpu_hours=float(gpu_seconds or 0.0) / 3600,
            hours=experiment.active_seconds / 3600,
            since=None if since is None else datetime.fromtimestamp(since, UTC),
        )

    def hours(self, experiment: Experiment) -> float:
        """Return for how many hours an experiment has run, without pauses, as of now."""
        since = experiment.active_since
        return (experiment.active_seconds + (0.0 if since is None else max(0.0, self.clock() - since))) / 3600

    def seconds(self, trial_run: TrialRun) -> float:
        """Return for how many seconds workers had a run of a trial, and the run that evaluates it."""
        ids = [trial_run.run_id, trial_run.live_id]
        spent = func.sum(func.coalesce(Attempt.ended_at, now()) - Attempt.started_at)
        return float(self._session.scalar(select(spent).where(Attempt.run_id.in_(ids))) or 0.0)

    def best(self, experiment: Experiment) -> Trial | None:
        """Return the complete trial with the best value, the first of several."""
        is_max = read_spec(experiment.spec).objective.mode == "max"
        complete = select(Trial).where(Trial.experiment_id == experiment.id, Trial.state == TrialState.COMPLETE)
        order = Trial.value.desc() if is_max else Trial.value.asc()
        return self._session.scalars(complete.order_by(order, Trial.number).limit(1)).one_or_none()

    def delete(self, experiment: Experiment) -> None:
        """Delete an experiment with its trials. Their runs stay."""
        self._session.delete(experiment)
        self._session.flush()


def _seconds(run_id: InstrumentedAttribute[Any]) -> ScalarSelect[Any]:
    """Select for how many seconds workers had a run."""
    spent = func.sum(func.coalesce(Attempt.ended_at, now()) - Attempt.started_at)
    return select(spent).where(Attempt.run_id == run_id).correlate_except(Attempt).scalar_subquery()
