"""The job that goes on with experiments: looks at the runs of trials, ends trials, and begins others.

A round reads what there is, decides outside of any transaction (samplers take their time), and carries all of it out in
one short transaction, if the experiment is still at the revision that was read: of two controllers one is dropped, and
one that is killed anywhere has begun a trial with its row and its run, or not at all.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from ludus.config.problems import split_path
from ludus.schemas.experiments import ExperimentState, TrialState, Used
from ludus.schemas.states import RunState, StopReason
from ludus.statistics import as_scores, interquartile_mean
from server.assessments.repository import AssessmentRepository
from server.checkpoints.repository import CheckpointRepository
from server.kit.artifacts.store import ArtifactStore
from server.kit.db.database import Database, Session
from server.kit.db.texts import JsonObject
from server.kit.errors import InvalidConfig, LudusError, RunEnded, Unavailable
from server.kit.jobs import Job, RowsFailed
from server.kit.states import TERMINAL
from server.kit.wake_up import Wakes
from server.ladders.ratings import RatingRepository
from server.lifecycle.experiments.models import Experiment, Trial, TrialRun
from server.lifecycle.experiments.population import Member, best_members, explored, gives_up
from server.lifecycle.experiments.refs import Advice, Proposal, Reported, SamplerFailed
from server.lifecycle.experiments.repository import ExperimentRepository
from server.lifecycle.experiments.requests import Budget, ExperimentSpec, Population, read_spec
from server.lifecycle.experiments.service import close, finish, pause_runs
from server.lifecycle.preparation import bind, prepare
from server.lifecycle.service import RunNotPaused, RunService
from server.metrics.points import MetricPoint, Points
from server.metrics.reader import MetricReader
from server.metrics.repository import MetricRepository
from server.runs.models import Run
from server.runs.repository import NewRun
from server.runs.stored_configs.service import Prepared

AT_ONCE = 16
"""Runs that one round begins at most: their transaction is short."""
FAILURES = 5
"""An experiment whose newest trials have failed, so many in a row, fails."""
RATING_POINTS = 200
"""Points of a policy's rating that are read, evenly spaced over its matches."""
REFUSALS = 50
"""So does one whose newest settings make no configuration, so many in a row."""


@dataclass(frozen=True)
class Ended:
    """What came of a run that has ended."""

    value: float | None
    detail: str = ""
    """Why it has no value."""
    by_user: bool = False
    """Whether it has none because a user has ended or deleted it."""


@dataclass
class Look:
    """An experiment as it is now."""

    experiment: Experiment
    spec: ExperimentSpec
    trials: Sequence[Trial]
    """Those that run, by number: a round costs what is under way, and not what there was."""
    counts: Mapping[str, int]
    """Number of trials in each state."""
    open_runs: Sequence[TrialRun]
    """Of trials that run."""
    runs: Mapping[str, Run]
    """Those of these, and of their evaluations, that there are."""
    seeds: Mapping[int, Collection[int]]
    """The seeds that each trial that runs has begun."""
    used: Used
    hours: float
    """For which it has run, without pauses."""

    @property
    def begun(self) -> int:
        """Number of trials."""
        return sum(self.counts.values())

    def has_ended(self, trial_run: TrialRun) -> bool:
        """Return whether the run that is under way has ended, or is deleted."""
        run = self.runs.get(trial_run.live_id)
        return run is None or run.state in TERMINAL

    def is_to_resume(self, trial_run: TrialRun) -> bool:
        """Return whether a run has paused with the experiment, which goes on."""
        run = self.runs.get(trial_run.live_id)
        return trial_run.is_paused and run is not None and run.state == RunState.PAUSED


@dataclass
class Decisions:
    """What a round carries out."""

    ended: dict[tuple[int, int], Ended] = field(default_factory=dict)
    """Runs that have ended, by trial and seed."""
    to_evaluate: dict[tuple[int, int], Prepared] = field(default_factory=dict)
    reported: dict[int, Reported] = field(default_factory=dict)
    """By trial."""
    new_seeds: list[tuple[int, int, Prepared | str]] = field(default_factory=list)
    """Further runs of trials that run: trial, seed, and the run's configuration, or why it was refused."""
    new_trials: list[tuple[Proposal, Prepared | str]] = field(default_factory=list)
    """With the configuration of their first run, or why it was refused."""
    to_resume: list[str] = field(default_factory=list)
    """Runs that paused with the experiment."""
    finished: str = ""
    """Why the experiment is over; empty while it isn't."""
    failed: str = ""
    """Why it cannot go on."""


class CannotGoOn(Exception):
    """The objective has no value in a run that ended well: nor will it have in any other."""


class ExperimentRounds:
    """Goes on with all experiments that run."""

    def __init__(self, database: Database, store: ArtifactStore, wake_up: Wakes) -> None:
        self._database = database
        self._store = store
        self._wake_up = wake_up

    def job(self) -> Job:
        """Return the job."""
        return Job("experiments", self._round, again_seconds=0.0)

    def _round(self) -> int:
        with self._database.read() as session:
            running = ExperimentRepository(session).running()
        handled, errors = 0, dict[str, LudusError]()
        for experiment_id, project in running:
            try:
                handled += self._go_on(experiment_id, self._database.within(project))
            except Unavailable:
                raise
            except LudusError as error:
                errors[experiment_id] = error
                with self._database.write() as session:
                    ExperimentRepository(session).hold_up(experiment_id, f"Held up, and tried again: {error}")
        if errors:
            raise RowsFailed(handled, errors)
        return handled

    def _go_on(self, experiment_id: str, database: Database) -> int:
        """Do a round of one experiment; return 1 if anything changed."""
        with database.read() as session:
            look = _look(session, experiment_id)
        decisions = Decisions()
        try:
            self._decide(database, look, decisions)
        except (SamplerFailed, CannotGoOn) as error:
            decisions.failed = str(error)
        if decisions == Decisions() and not look.experiment.detail:
            return 0
        with database.write() as session:
            experiment = ExperimentRepository(session).lock_at(experiment_id, look.experiment.revision)
            if experiment is None:  # it has changed since, or another controller is about to change it
                return 0
            _Execution(session, RunService(session, self._wake_up), experiment, look.spec).carry_out(decisions)
        return 1

    def _decide(self, database: Database, look: Look, decisions: Decisions) -> None:
        """Decide. What ended is carried out before anything else: samplers learn from it.

        Raises SamplerFailed, CannotGoOn.
        """
        for trial_run in look.open_runs:
            if look.has_ended(trial_run):
                self._score(database, look, trial_run, decisions)
        if decisions.ended or decisions.to_evaluate:
            return
        decisions.finished = _over(look.spec.budget, look.used, look.hours)
        decisions.to_resume = [run.live_id for run in look.open_runs if look.is_to_resume(run)]
        if decisions.finished:
            return
        study: Advice | None = None
        if look.spec.population is not None:
            self._compare(database, look, look.spec.population, decisions)
        elif look.spec.early_stopping is not None:
            for trial in look.trials:
                if points := self._new_points(database, look, trial):
                    study = study or _study(database, look)
                    decisions.reported[trial.number] = study.report(trial.number, points)
        if not decisions.new_trials and not any(reported.ends for reported in decisions.reported.values()):
            self._begin(database, look, decisions, study)

    def _score(self, database: Database, look: Look, trial_run: TrialRun, decisions: Decisions) -> None:
        """Decide what comes of a run that has ended. Raises CannotGoOn."""
        place = trial_run.trial, trial_run.seed
        run = look.runs.get(trial_run.live_id)
        assessment = look.spec.objective.assessment
        if run is None or run.state != RunState.SUCCEEDED:
            why = "was deleted" if run is None else f"is {run.state}: {run.stop_detail or run.stop_reason}"
            by_user = run is None or run.state == RunState.CANCELLED
            decisions.ended[place] = Ended(None, f"Run {trial_run.live_id} {why}", by_user)
        elif run.stop_reason == StopReason.USER:
            decisions.ended[place] = Ended(None, f"Run {run.id} was stopped by a user.", by_user=True)
        elif assessment is None:
            if look.spec.objective.rating is not None:
                with database.read() as session:
                    if not RatingRepository(session).has_rated(run.id):
                        return  # the controller rates the last matches within seconds
            steps, values = self._curve(database, look.spec, run.id)
            if not steps:
                raise CannotGoOn(self._missing(database, look, trial_run))
            value = float(np.mean(values[-look.spec.objective.last :]))
            why = "" if math.isfinite(value) else f"{look.spec.objective.compares} of run {run.id} is no finite number."
            decisions.ended[place] = Ended(value if math.isfinite(value) else None, why)
        elif trial_run.assessment_id is None:
            section, key, content = assessment
            document = {section: {**content, key: f"{trial_run.run_id}/latest"}}
            try:
                with database.read() as session:
                    decisions.to_evaluate[place] = prepare(session, document)
            except InvalidConfig as error:
                raise CannotGoOn(f"objective.{section} is refused: {error}") from error
        else:
            with database.read() as session:
                found = AssessmentRepository(session).find(run.id)
            result = {} if found is None else found.result
            score = result.get("mean" if assessment[0] == "evaluate" else "score")
            decisions.ended[place] = Ended(score, "" if score is not None else f"Run {run.id} played no game.")

    def _curve(self, database: Database, spec: ExperimentSpec, run_id: str) -> tuple[list[int], list[float]]:
        """Return steps and values of the objective's metric, or of the rating, in a run. Raises CannotGoOn."""
        objective = spec.objective
        if (rating := objective.rating) is not None:
            with database.read() as session:
                policies = RatingRepository(session).of_policies(run_id, RATING_POINTS)
            histories = {
                name: Points.of(
                    [MetricPoint(name, rating, point.step or 0, point.at, getattr(point, rating)) for point in history]
                )
                for name, history in policies.items()
                if objective.behavior in {None, name}
            }
        else:
            reader = MetricReader(database, self._store)
            histories = {
                behavior: Points.joined(list(by_attempt.values())).increasing()
                for (_, behavior, _), by_attempt in reader.by_attempt(
                    [run_id], [objective.metric], objective.behavior
                ).items()
            }
        histories = {behavior: points for behavior, points in histories.items() if len(points)}
        if len(histories) > 1:
            raise CannotGoOn(
                f"{objective.compares} has a value for each of {', '.join(sorted(histories))}: name one in "
                "objective.behavior (`ludus experiment set`), then resume."
            )
        if not histories:
            return [], []
        (points,) = histories.values()
        return points.steps.tolist(), points.values.tolist()

    def _missing(self, database: Database, look: Look, trial_run: TrialRun) -> str:
        with database.read() as session:
            keys = ", ".join(MetricRepository(session).keys([trial_run.run_id])[:12]) or "nothing"
        of = "" if look.spec.objective.behavior is None else f" of {look.spec.objective.behavior}"
        return (
            f"Run {trial_run.run_id} has recorded no {look.spec.objective.compares}{of}, but {keys}. "
            "Set another objective (`ludus experiment set`), then resume: no run is lost."
        )

    def _new_points(self, database: Database, look: Look, trial: Trial) -> list[tuple[int, float]]:
        """Return the steps beyond the last report that every run of a trial has reached, and the mean value there."""
        rule, population = look.spec.early_stopping, look.spec.population
        limit = math.inf if rule is None or rule.max_steps is None else rule.max_steps  # one that came so far has ended
        least = (rule.min_steps if rule is not None else None) or (population.interval if population else 1)
        runs = [run for run in look.open_runs if run.trial == trial.number]
        curves = [self._curve(database, look.spec, run.run_id) for run in runs]
        if not curves or not all(steps for steps, _ in curves):
            return []
        reported = trial.reports[-1][0] if trial.reports else least - 1
        reached = min(steps[-1] for steps, _ in curves)
        last = look.spec.objective.last
        points = []
        for step in curves[0][0]:
            if reported < step <= reached and step < limit:
                until = [int(np.searchsorted(steps, step, side="right")) for steps, _ in curves]
                means = [
                    float(np.mean(values[max(0, end - last) : end])) if end else math.nan
                    for (_, values), end in zip(curves, until, strict=True)
                ]
                if math.isfinite(sum(means)):
                    points.append((step, sum(means) / len(means)))
        return points

    def _compare(self, database: Database, look: Look, rule: Population, decisions: Decisions) -> None:
        """Compare members that have come to their next interval with all others; replace those that give up.

        A member that failed is replaced, too. Raises CannotGoOn.
        """
        assert look.spec.seed is not None
        sign = 1.0 if look.spec.objective.mode == "max" else -1.0
        running = {trial.number: trial for trial in look.trials}
        newest = {trial.number: trial.reports[-1][1] for trial in look.trials if trial.reports}
        due = []
        for trial in look.trials:
            points = self._new_points(database, look, trial)
            since = trial.reports[-1][0] if trial.reports else trial.attributes.get("step", 0)
            if points and points[-1][0] // rule.interval > since // rule.interval:
                newest[trial.number] = points[-1][1]
                decisions.reported[trial.number] = Reported(points[-1:], ends=False, attributes=trial.attributes)
                due.append(trial.number)
        members = [Member(number, sign * value) for number, value in newest.items()]
        losers = [number for number in due if gives_up(number, members, rule.quantile)]
        complete = look.counts.get(TrialState.COMPLETE, 0)
        missing = rule.members - len(running) - complete if look.begun >= rule.members else 0
        replaced: list[int | None] = [*losers, *([None] * missing)] if members else []
        best = best_members([member for member in members if member.number not in losers], rule.quantile)
        for number in replaced:
            child = look.begun + len(decisions.new_trials)
            if child >= (look.spec.budget.runs or math.inf):
                break
            random = np.random.default_rng((look.spec.seed, child))
            parent = running[best[int(random.integers(len(best)))].number]
            with database.read() as session:
                run = ExperimentRepository(session).runs_of(look.experiment.id, [parent.number])[parent.number][0]
                checkpoint = CheckpointRepository(session).newest(run.run_id)
            if checkpoint is None:
                continue
            setting = explored(parent.parameters, look.spec.parameters, rule, random)
            attributes = {"parent": parent.number, "checkpoint": checkpoint.id, "step": checkpoint.step}
            start = {"checkpoint_settings.resume_from": checkpoint.id}
            prepared = self._prepare(database, look, setting | start, child)
            if isinstance(prepared, Prepared) and checkpoint.step + rule.interval > (
                prepared.config.max_steps or math.inf
            ):
                continue  # too late to learn anything more
            decisions.new_trials.append((Proposal(child, setting, attributes), prepared))
            if number is not None:
                decisions.reported[number] = replace(decisions.reported[number], ends=True)

    def _begin(self, database: Database, look: Look, decisions: Decisions, study: Advice | None) -> None:
        """Decide which runs begin: further seeds of trials that run, then further trials. Raises SamplerFailed."""
        spec = look.spec
        free = min(spec.parallelism - len(look.open_runs), AT_ONCE)
        left = math.inf if spec.budget.runs is None else spec.budget.runs - look.used.runs
        remaining = self._remaining(look)
        for trial in look.trials:
            missing = [seed for seed in range(spec.seeds) if seed not in look.seeds[trial.number]]
            left -= len(missing)  # a trial that has begun is brought to its end
            for seed in missing[: max(0, free)]:
                decisions.new_seeds.append((trial.number, seed, self._prepare(database, look, trial.parameters, seed)))
                free -= 1
        while free > 0 and left >= spec.seeds and remaining > 0:
            study = study or _study(database, look)
            is_first = not look.begun and not decisions.new_trials
            proposal = study.ask(self._baseline(database, look) if is_first and spec.baseline else None)
            seed = proposal.number if spec.population else 0  # settings are compared by the same seeds, members by any
            decisions.new_trials.append((proposal, self._prepare(database, look, proposal.parameters, seed)))
            free, left, remaining = free - 1, left - spec.seeds, remaining - 1
        if not look.open_runs and not decisions.new_seeds and not decisions.new_trials:
            tried = "All members have trained." if spec.population else f"All {spec.size} settings were tried."
            decisions.finished = tried if remaining <= 0 else f"Its budget of {spec.budget.runs} runs is used."

    def _remaining(self, look: Look) -> float:
        """Return how many settings are left to try. A population without a living member begins anew."""
        if look.spec.population is None or look.trials or look.begun < look.spec.size:
            return look.spec.size - look.begun
        return look.spec.size - look.counts.get(TrialState.COMPLETE, 0)

    def _prepare(self, database: Database, look: Look, parameters: JsonObject, seed: int) -> Prepared | str:
        """Return the configuration of a run of a setting, or why it is refused."""
        assert look.spec.seed is not None
        overrides = {**parameters, "seed": look.spec.seed + seed}
        try:
            with database.read() as session:
                return prepare(session, look.experiment.config, overrides=overrides)
        except InvalidConfig as error:
            return f"Its configuration is refused: {error}"

    def _baseline(self, database: Database, look: Look) -> JsonObject:
        """Return the values that the configuration itself has of the keys that vary."""
        with database.read() as session:
            config: object = prepare(session, look.experiment.config).config.model_dump(mode="json")
        values = {}
        for path in look.spec.parameters:
            value = config
            for key in split_path(path):
                value = value.get(key) if isinstance(value, dict) else None
            values[path] = value
        return values


class _Execution:
    """Carries out what was decided, on a locked experiment."""

    def __init__(self, session: Session, runs: RunService, experiment: Experiment, spec: ExperimentSpec) -> None:
        self._session = session
        self._runs = runs
        self._experiment = experiment
        self._spec = spec
        self._experiments = ExperimentRepository(session)
        self._clock = self._experiments.clock()

    def carry_out(self, decisions: Decisions) -> None:
        experiment = self._experiment
        experiment.revision += 1
        experiment.detail = ""
        for trial_run in self._experiments.open_runs(experiment.id):
            if trial_run.live_id in decisions.to_resume:
                trial_run.is_paused = False
                with suppress(RunNotPaused, RunEnded):
                    self._runs.resume(trial_run.live_id)
        self._close(decisions)
        for number, seed, prepared in decisions.new_seeds:
            self._start(self._experiments.trial(experiment.id, number), seed, prepared)
        for proposal, prepared in decisions.new_trials:
            trial = Trial(
                experiment_id=experiment.id,
                number=proposal.number,
                state=TrialState.RUNNING,
                parameters=proposal.parameters,
                detail="",
                reports=[],
                attributes=proposal.attributes,
                created_at=self._clock,
            )
            self._session.add(trial)
            self._session.flush()
            self._start(trial, 0, prepared)
        if decisions.finished:
            finish(self._session, self._runs, experiment, decisions.finished)
            return
        failed = decisions.failed or self._keeps_failing()
        if failed:
            pause_runs(self._experiments, self._runs, experiment)
            self._experiments.move(experiment, ExperimentState.FAILED, failed)

    def _close(self, decisions: Decisions) -> None:
        """End runs and trials; begin evaluations."""
        for trial_run in self._experiments.open_runs(self._experiment.id):
            ended = decisions.ended.get((trial_run.trial, trial_run.seed))
            evaluated = decisions.to_evaluate.get((trial_run.trial, trial_run.seed))
            if ended is not None:
                trial_run.value = ended.value
                close(self._experiments, self._runs, trial_run)
            elif evaluated is not None:
                run = self._create(f"{trial_run.trial}-{trial_run.seed}-evaluated", trial_run.trial, evaluated)
                trial_run.assessment_id = run.id
        touched = {trial for trial, _ in decisions.ended} | decisions.reported.keys()
        runs = self._experiments.runs_of(self._experiment.id, sorted(touched))
        for number in sorted(touched):
            trial = self._experiments.trial(self._experiment.id, number)
            if trial.state != TrialState.RUNNING:
                continue
            reported = decisions.reported.get(number)
            without = [ended for (of, _), ended in decisions.ended.items() if of == number and ended.detail]
            values = [run.value for run in runs[number] if run.value is not None]
            if reported is not None:
                trial.reports = [*trial.reports, *reported.looked_at]
                trial.attributes = reported.attributes
            if without:
                first = min(without, key=lambda ended: ended.by_user)  # what failed says more than what was stopped
                self._end(trial, TrialState.STOPPED if first.by_user else TrialState.FAILED, first.detail)
            elif len(values) == self._spec.seeds:
                trial.value = float(interquartile_mean(as_scores(values)))
                self._end(trial, TrialState.COMPLETE, "")
            elif reported is not None and reported.ends:
                step, value = trial.reports[-1]
                self._end(trial, TrialState.PRUNED, f"At step {step:,} others were better than its {value:.6g}.")

    def _end(self, trial: Trial, state: TrialState, detail: str) -> None:
        """End a trial, and its runs with it."""
        trial.state, trial.detail, trial.finished_at = state, detail, self._clock
        for run in self._experiments.open_runs(trial.experiment_id):
            if run.trial == trial.number:
                close(self._experiments, self._runs, run)
        self._session.flush()

    def _start(self, trial: Trial, seed: int, prepared: Prepared | str) -> None:
        """Begin a run of a trial, or end the trial because its configuration is refused."""
        if isinstance(prepared, str):
            self._end(trial, TrialState.FAILED, prepared)
            return
        run = self._create(f"{trial.number}-{seed}", trial.number, prepared)
        row = TrialRun(
            experiment_id=trial.experiment_id,
            trial=trial.number,
            seed=seed,
            run_id=run.id,
            steps=0,
            seconds=0.0,
            gpus=prepared.config.resources.gpu,
            is_paused=False,
            is_open=True,
        )
        self._session.add(row)
        self._session.flush()

    def _create(self, name: str, number: int, prepared: Prepared) -> Run:
        experiment = self._experiment
        new = NewRun(
            prepared.config,
            name=f"{experiment.name}-{name}",
            tags=[f"experiment:{experiment.name}", f"trial:{number}"],
            token_id=experiment.token_id,
            warnings=prepared.warnings,
        )
        return self._runs.create(bind(self._session, new))

    def _keeps_failing(self) -> str:
        """Return why the experiment cannot go on, if its newest trials have all failed."""
        newest = self._experiments.newest_ended(self._experiment, REFUSALS)
        runs = self._experiments.runs_of(self._experiment.id, [trial.number for trial in newest])
        begun = [trial for trial in newest if runs[trial.number]][:FAILURES]
        if len(begun) == FAILURES and all(trial.state == TrialState.FAILED for trial in begun):
            return f"The last {FAILURES} trials have failed. Trial {begun[0].number}: {begun[0].detail}"
        if len(newest) == REFUSALS and not begun:
            return f"The last {REFUSALS} settings were refused. Trial {newest[0].number}: {newest[0].detail}"
        return ""


def _look(session: Session, experiment_id: str) -> Look:
    experiments = ExperimentRepository(session)
    experiment = experiments.get(experiment_id)
    trials = experiments.trials(experiment_id, TrialState.RUNNING)
    runs = experiments.runs_of(experiment_id, [trial.number for trial in trials])
    open_runs = [run for of_trial in runs.values() for run in of_trial if run.is_open]
    ids = {run_id for run in open_runs for run_id in (run.run_id, run.live_id)}
    seeds = {number: {run.seed for run in of_trial} for number, of_trial in runs.items()}
    spec = read_spec(experiment.spec)
    return Look(
        experiment=experiment,
        spec=spec,
        trials=trials,
        counts=experiments.counts(experiment_id),
        open_runs=open_runs,
        runs=experiments.present(sorted(ids)),
        seeds=seeds,
        used=experiments.used(experiment),
        hours=experiments.hours(experiment),
    )


def _study(database: Database, look: Look) -> Advice:
    """Build the study of all trials. If they have changed since the look, nothing of the round is carried out."""
    from server.lifecycle.experiments.sampling import Study  # noqa: PLC0415  # Optuna: most controllers never need it

    assert look.spec.seed is not None
    with database.read() as session:
        trials = ExperimentRepository(session).trials(look.experiment.id)
    return Study(look.spec, look.spec.seed, trials)


def _over(budget: Budget, used: Used, hours: float) -> str:
    """Return which limit is reached at which runs are stopped; empty: none."""
    for limit, spent, unit in (
        (budget.steps, used.steps, "steps"),
        (budget.gpu_hours, used.gpu_hours, "GPU hours"),
        (budget.hours, hours, "hours"),
    ):
        if limit is not None and spent >= limit:
            return f"Its budget of {limit:{',' if limit >= 1 else '.3g'}} {unit} is used."
    return ""
