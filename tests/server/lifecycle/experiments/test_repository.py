"""What experiments keep, on either database."""

from sqlalchemy import select

from ludus.schemas.experiments import TrialState
from server.kit.db.database import Database
from server.lifecycle.experiments.models import Trial, TrialRun
from server.lifecycle.experiments.repository import ExperimentRepository
from server.lifecycle.experiments.requests import Budget, ExperimentSpec
from server.lifecycle.experiments.service import ExperimentService
from server.runs.models import RunTag
from tests.factories import RecordingWakeUp, make_run, read_run


def make_trial(database: Database, name: str, *runs: str) -> str:
    """Insert an experiment with one trial, of which every seed but the last has a value; return its id."""
    spec = ExperimentSpec(budget=Budget(runs=10), seeds=len(runs)).model_dump(mode="json")
    with database.write() as session:
        row = ExperimentRepository(session).insert(name, "", spec, {}, "")
        trial = Trial(experiment_id=row.id, number=0, state=TrialState.STOPPED, parameters={}, created_at=1.0)
        trial.reports, trial.attributes = [], {}
        session.add(trial)
        session.flush()
        for seed, run_id in enumerate(runs):
            one = TrialRun(experiment_id=row.id, trial=0, seed=seed, run_id=run_id, steps=100, is_open=False)
            one.value, one.seconds, one.gpus, one.is_paused = None if seed == len(runs) - 1 else 1.0, 2.0, 1, False
            session.add(one)
        return row.id


def test_a_trial_that_is_tried_again_keeps_its_values_and_what_it_has_used(database: Database) -> None:
    experiment = make_trial(database, "again", "run_1", "run_2")

    for _ in range(2):  # a run that was set aside makes room for each further one
        with database.write() as session:
            ExperimentService(session, RecordingWakeUp()).try_again(experiment, None)
            ((kept,),) = ExperimentRepository(session).runs_of(experiment, [0]).values()
            assert (kept.seed, kept.run_id) == (0, "run_1")
            session.add(
                TrialRun(experiment_id=experiment, trial=0, seed=1, run_id="run_3", steps=10, seconds=1.0, gpus=1)
            )
            session.get_one(Trial, (experiment, 0)).state = TrialState.STOPPED

    with database.read() as session:
        experiments = ExperimentRepository(session)
        used = experiments.used(experiments.get(experiment))
        assert experiments.has_values(experiment)
    assert (used.runs, used.steps) == (4, 100 + 100 + 10 + 10)
    assert used.gpu_hours * 3600 == 2.0 + 2.0 + 1.0 + 1.0


def test_a_deleted_experiment_leaves_its_id_as_the_tag_of_its_own_runs(database: Database) -> None:
    own = make_run(database, name="rates-0-0", tags=["experiment:rates", "trial:0"]).id
    other = make_run(database, name="other", tags=["experiment:rates"]).id
    experiment = make_trial(database, "rates", own, "run_gone")

    with database.write() as session:
        experiments = ExperimentRepository(session)
        service = ExperimentService(session, RecordingWakeUp())
        service.stop(experiment)
        service.delete(experiment)
        assert experiments.run_ids(experiment) == []

    assert read_run(database, own).tags == [f"experiment:{experiment}", "trial:0"]
    assert read_run(database, other).tags == ["experiment:rates"]
    with database.read() as session:
        tagged = session.scalars(select(RunTag.run_id).where(RunTag.tag == f"experiment:{experiment}")).all()
        assert tagged == [own]
