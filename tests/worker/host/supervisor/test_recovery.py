"""An attempt begins with the newest checkpoint that is good."""

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from sqlalchemy import select

from ludus.schemas.states import RunState
from server.checkpoints.models import Checkpoint
from server.checkpoints.service import CheckpointService
from server.config.run import RunConfig
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.kit.errors import InvalidConfig
from server.lifecycle.service import RunService
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


class LockedStore(FolderStore):
    """A store that does not hand out the files of some checkpoints, by the last part of their paths."""

    def __init__(self, root: Path, locked: Collection[str], number: int) -> None:
        super().__init__(root)
        self._locked = locked
        self._number = number

    def _file(self, path: str) -> Path:
        if path.split("/")[-2] in self._locked:
            raise OSError(self._number, os.strerror(self._number), path)
        return super()._file(path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_checkpoint_that_cannot_be_read_is_damaged_if_another_one_can(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    store = LockedStore(tmp_path / "artifacts", ["200", "300"], number)
    ids = with_checkpoints(database, store, tmp_path, [100, 200, 300])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    events = messages_of(database)
    assert events["resumed"] == "100"
    assert os.strerror(number) in events["checkpoint_damaged"]
    assert damaged(database) == set(ids[1:])


@pytest.mark.parametrize(
    ("number", "outcome"), [(errno.EACCES, "storage_unavailable"), (errno.EIO, "released")], ids=["refused", "away"]
)
def test_a_store_from_which_nothing_can_be_read_makes_no_checkpoint_damaged(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, outcome: str
) -> None:
    monkeypatch.setattr(job, "RETRY_SECONDS", 0.0)
    store = LockedStore(tmp_path / "artifacts", ["100", "200"], number)
    with_checkpoints(database, store, tmp_path, [100, 200])

    supervise(database, tmp_path, Threaded(trainers.resumes), store=store)

    assert read_run(database, "run").state == RunState.RECOVERING, "another worker may read them"
    assert damaged(database) == set()
    with database.read() as session:
        assert RunRepository(session).attempts(read_run(database, "run").id)[-1].outcome == outcome


@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
def test_a_run_that_names_a_damaged_checkpoint_fails_at_once_and_no_other_run_may_name_it(
    database: Database, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    store = FolderStore(tmp_path / "artifacts")
    (checkpoint,) = with_checkpoints(database, store, tmp_path, [100])
    with database.write() as session:
        RunService(session, RecordingWakeUp()).cancel("run")
    begin_with(database, checkpoint, "next")
    harm(files_of(tmp_path)["100"])

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
