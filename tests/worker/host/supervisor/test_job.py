"""What an attempt begins with: the newest checkpoint that is good, and those that its configuration names."""

import errno
import json
import os
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from ludus.config.run import RunConfig
from ludus.schemas.states import RunState
from server.checkpoints.models import Checkpoint
from server.checkpoints.service import CheckpointService
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.errors import InvalidConfig, StorageRefused, StorageUnavailable
from server.lifecycle.service import RunService
from server.runs.models import Event
from server.runs.repository import NewRun, RunRepository
from tests.factories import RecordingWakeUp, read_run
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.supervising import Threaded, messages_of, supervise, with_checkpoints
from worker.host.supervisor import job


def files_of(folder: Path) -> dict[str, Path]:
    return {file.parent.name: file for file in (folder / "artifacts").rglob("state.json")}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def begin_with(database: Database, checkpoint: str, name: str) -> None:
    """Queue a run that begins with a checkpoint. Raises InvalidConfig."""
    document = {"behaviors": {"CartPole": {"trainer_type": "ppo", "initialize_from": checkpoint}}}
    with database.write() as session:
        config = RunConfig.model_validate(document)
        named = CheckpointService(session).check(config, lock=True)
        RunService(session, RecordingWakeUp()).create(NewRun(config, name=name, checkpoints=named))


def outcomes(database: Database) -> list[str | None]:
    """Return how the attempts of the run ended, in order."""
    with database.read() as session:
        attempts = RunRepository(session).attempts(read_run(database, "run").id)
        return [attempt.outcome for attempt in attempts]


def damaged(database: Database) -> set[str]:
    with database.read() as session:
        return {row.id for row in session.scalars(select(Checkpoint)) if row.damaged_at is not None}


@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
def test_recovery_begins_with_the_newest_checkpoint_that_is_good(
    database: Database, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    store = FolderStore(tmp_path / "artifacts")
    ids = with_checkpoints(database, store, tmp_path, [100, 200, 300])
    for name in ("200", "300"):
        harm(files_of(tmp_path)[name])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    events = messages_of(database)
    assert events["resumed"] == "100"
    assert ids[1] in events["checkpoint_damaged"]
    assert "state.json" in events["checkpoint_damaged"]
    assert damaged(database) == set(ids[1:])
    with database.read() as session:
        given_up = session.scalars(select(Event).where(Event.type == "checkpoint_damaged").order_by(Event.seq)).all()
        assert [(event.data or {})["checkpoint_id"] for event in given_up] == [ids[2], ids[1]]
        assert {((event.data or {})["resumed_from"], (event.data or {})["resume_step"]) for event in given_up} == {
            (ids[0], 100)
        }


class FaultyStore(FolderStore):
    """A store that fails, for each checkpoint with as many errors as are given for it, in order.

    `faults`: by the last part of the checkpoints' paths. None: this time the files can be read.
    """

    def __init__(self, root: Path, **faults: Iterable[Exception | None]) -> None:
        super().__init__(root)
        self._faults = {name.strip("_"): iter(errors) for name, errors in faults.items()}

    def _file(self, path: str) -> Path:
        error = next(self._faults.get(path.split("/")[-2], iter(())), None)
        if error is not None:
            raise error
        return super()._file(path)


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "state.json")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_checkpoint_that_cannot_be_read_is_damaged_if_another_one_can(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    store = FaultyStore(tmp_path / "artifacts", _200=repeat(os_error(number)), _300=repeat(os_error(number)))
    ids = with_checkpoints(database, store, tmp_path, [100, 200, 300])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    events = messages_of(database)
    assert events["resumed"] == "100"
    assert os.strerror(number) in events["checkpoint_damaged"]
    assert damaged(database) == set(ids[1:])


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read where it begins")
def test_a_checkpoint_with_a_bad_sector_is_damaged(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BadSector(FolderStore):
        def _file(self, path: str) -> Path:
            return Path("/proc/self/mem") if "/200/" in path else super()._file(path)

    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    store = BadSector(tmp_path / "artifacts")
    ids = with_checkpoints(database, store, tmp_path, [100, 200])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    assert messages_of(database)["resumed"] == "100"
    assert damaged(database) == {ids[1]}


def test_a_checkpoint_that_can_be_read_again_while_an_older_one_is_fetched_is_used(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    once = [os_error(errno.EIO)]
    store = FaultyStore(tmp_path / "artifacts", _200=once, _300=once)
    with_checkpoints(database, store, tmp_path, [100, 200, 300])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    assert messages_of(database)["resumed"] == "300"
    assert damaged(database) == set()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (StorageUnavailable("s3://ludus says SlowDown: reduce your request rate"), "released"),
        (os_error(errno.EMFILE), "released"),
        (StorageRefused("it does not take the keys (ExpiredToken)", "mend the access key"), "storage_unavailable"),
    ],
    ids=["throttled", "too many open files", "keys expired"],
)
def test_a_fault_of_the_whole_store_makes_no_checkpoint_damaged_and_the_next_attempt_uses_the_newest(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: str
) -> None:
    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    store = FaultyStore(tmp_path / "artifacts", _200=[error])
    with_checkpoints(database, store, tmp_path, [100, 200])

    for _ in range(2):
        supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    assert outcomes(database)[1] == outcome
    assert messages_of(database)["resumed"] == "200"
    assert damaged(database) == set()


@pytest.mark.parametrize(
    ("number", "outcome"), [(errno.EACCES, "storage_unavailable"), (errno.EIO, "released")], ids=["refused", "away"]
)
@pytest.mark.parametrize("before", [[], [None]], ids=["at once", "after the older one was read"])
def test_a_store_from_which_nothing_can_be_read_makes_no_checkpoint_damaged(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[None], number: int, outcome: str
) -> None:
    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    older = chain(before, repeat(os_error(number)))
    store = FaultyStore(tmp_path / "artifacts", _100=older, _200=repeat(os_error(number)))
    with_checkpoints(database, store, tmp_path, [100, 200])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    assert read_run(database, "run").state == RunState.RECOVERING, "another worker may read them"
    assert damaged(database) == set()
    assert outcomes(database)[-1] == outcome


def test_a_run_that_names_a_damaged_checkpoint_fails_at_once_and_no_other_run_may_name_it(
    database: Database, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path / "artifacts")
    (checkpoint,) = with_checkpoints(database, store, tmp_path, [100])
    with database.write() as session:
        RunService(session, RecordingWakeUp()).cancel("run")
    begin_with(database, checkpoint, "next")
    flip(files_of(tmp_path)["100"])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    ended = read_run(database, "next")
    assert (ended.state, ended.stop_reason, ended.attempt) == (RunState.FAILED, "checkpoint_damaged", 1)
    assert f"checkpoint {checkpoint}, which is damaged: state.json" in (ended.stop_detail or "")
    with pytest.raises(InvalidConfig, match=f"checkpoint {checkpoint} is damaged"):
        begin_with(database, checkpoint, "third")


def test_a_run_whose_checkpoints_are_all_damaged_fails_and_says_so(database: Database, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "artifacts")
    with_checkpoints(database, store, tmp_path, [100, 200])
    for file in files_of(tmp_path).values():
        flip(file)

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    run = read_run(database, "run")
    assert (run.state, run.stop_reason) == (RunState.FAILED, "checkpoint_damaged")
    assert "none of the run's checkpoints can be restored" in (run.stop_detail or "")
    assert "resumed" not in messages_of(database)


BEGINNINGS = {
    "resume_from": {"behaviors": {"CartPole": {}}, "checkpoint_settings": {"resume_from": "CHECKPOINT"}},
    "initialize_from": {"behaviors": {"CartPole": {"initialize_from": "CHECKPOINT"}}},
}
"""Configurations of runs that begin with a checkpoint."""


def successor(database: Database, folder: Path, document: dict[str, Any]) -> str:
    """Queue `run`, which begins with a checkpoint of the run `first` and has one of its own; return that of `first`.

    The file of the first one is damaged then.
    """
    store = FolderStore(folder / "artifacts")
    (checkpoint,) = with_checkpoints(database, store, folder, [100], name="first")
    with database.write() as session:
        RunService(session, RecordingWakeUp()).cancel("first")
    config = json.loads(json.dumps(document).replace("CHECKPOINT", checkpoint))
    with_checkpoints(database, store, folder, [200], name="run", config=config, checkpoints=[checkpoint])
    flip(files_of(folder)["100"])
    return checkpoint


@pytest.mark.parametrize("key", BEGINNINGS)
def test_a_run_that_resumes_from_its_own_checkpoint_does_not_need_the_one_that_it_began_with(
    database: Database, tmp_path: Path, key: str
) -> None:
    successor(database, tmp_path, BEGINNINGS[key])

    supervise(database, tmp_path, Threaded(trainers.resumes))

    assert messages_of(database)["resumed"] == "200"
    assert damaged(database) == set()


@pytest.mark.parametrize(
    "behaviors",
    [
        {"CartPole": {"self_play": {"opponents": ["CHECKPOINT"]}}},
        {"CartPole": {}, "Later": {"initialize_from": "CHECKPOINT"}},
    ],
    ids=["an opponent", "a behavior that is not saved yet"],
)
def test_a_run_that_resumes_fails_of_a_damaged_checkpoint_that_it_still_needs(
    database: Database, tmp_path: Path, behaviors: dict[str, Any]
) -> None:
    checkpoint = successor(database, tmp_path, {"behaviors": behaviors})

    supervise(database, tmp_path, Threaded(trainers.resumes))

    assert read_run(database, "run").stop_reason == "checkpoint_damaged"
    assert damaged(database) == {checkpoint}
