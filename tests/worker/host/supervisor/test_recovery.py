"""An attempt begins with the newest checkpoint that is good."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import select

from ludus.schemas.states import RunState
from server.checkpoints.models import Checkpoint
from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from tests.factories import read_run
from tests.worker.host.supervisor import trainers
from tests.worker.host.supervisor.supervising import Threaded, messages_of, supervise, with_checkpoints


def files_of(folder: Path) -> dict[str, Path]:
    return {file.parent.name: file for file in (folder / "artifacts").rglob("state.json")}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


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
    with database.read() as session:
        damaged = {row.id for row in session.scalars(select(Checkpoint)) if row.damaged_at is not None}
    assert damaged == set(ids[1:])


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
