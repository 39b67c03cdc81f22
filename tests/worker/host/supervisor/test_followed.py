"""Followed runs: checkpoints of other runs that are copied for the trainer, and how many of them stay on the disk."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.kit.artifacts.folder import FolderStore
from server.kit.db.database import Database
from server.lifecycle.attempts import AttemptLedger
from tests.factories import claim_run, make_checkpoint, make_run
from tests.waiting import eventually
from worker.host.supervisor import followed
from worker.host.supervisor.followed import FollowedRuns
from worker.host.supervisor.lease import Lease, Writes
from worker.host.supervisor.transfers import ArtifactTransfer
from worker.trainer.connection import SupervisorConnection, TrainerConnection
from worker.trainer.messages import Order, RunAdvanced

Save = Callable[[str, int], str]


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "artifacts")


@pytest.fixture
def save(database: Database, ledger: AttemptLedger, store: FolderStore, tmp_path: Path) -> Save:
    """Have a run, `main` or `exploiter`, save a checkpoint of a step; return its id. `ledger`: the one that follows."""
    del ledger  # its run is claimed before there are others
    runs = {name: make_run(database, name=name).id for name in ("main", "exploiter")}
    ledgers = {name: AttemptLedger(database, claim_run(database, run)) for name, run in runs.items()}

    def save(name: str, step: int) -> str:
        made = tmp_path / f"{name}-{step}"
        made.mkdir()
        (made / "state.json").write_text(f"{name} {step}")
        path = f"runs/{runs[name]}/1/checkpoints/{step}"
        return ledgers[name].checkpoints.add(make_checkpoint(step, path=path, files=store.publish(made, path)))

    return save


@pytest.fixture
def runs(
    lease: Lease, ledger: AttemptLedger, store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FollowedRuns]:
    """What brings a trainer the checkpoints of both, without pauses."""
    monkeypatch.setattr(followed, "LOOK_SECONDS", 0.0)
    transfer = ArtifactTransfer(store, lease, lambda: False)
    yield FollowedRuns(["main", "exploiter"], ledger, transfer, Writes(), tmp_path / "scratch")
    transfer.close()


def advanced(runs: FollowedRuns, ends: tuple[SupervisorConnection, TrainerConnection], checkpoint: str) -> RunAdvanced:
    """Poll until the trainer hears of a checkpoint; return the message."""
    link, trainer = ends
    orders: list[Order] = []

    def told() -> bool:
        runs.poll(link)
        orders.extend(trainer.commands())
        return bool(orders)

    eventually(told)
    (message,) = orders
    assert isinstance(message, RunAdvanced)
    assert message.checkpoint == checkpoint
    return message


def on_disk(tmp_path: Path) -> set[str]:
    """Return the contents of the checkpoints that lie in the scratch folder."""
    return {file.read_text() for file in (tmp_path / "scratch" / "followed").glob("*/state.json")}


def test_of_each_followed_run_the_newest_two_checkpoints_stay_on_the_disk(
    runs: FollowedRuns, save: Save, ends: tuple[SupervisorConnection, TrainerConnection], tmp_path: Path
) -> None:
    advanced(runs, ends, save("exploiter", 5))
    kept = []
    for step in (10, 20, 30, 40):
        message = advanced(runs, ends, save("main", step))

        assert (Path(message.folder) / "state.json").read_text() == f"main {step}"
        kept.append(on_disk(tmp_path) - {"exploiter 5"})

    assert kept == [{"main 10"}, {"main 10", "main 20"}, {"main 20", "main 30"}, {"main 30", "main 40"}]
    assert "exploiter 5" in on_disk(tmp_path), "each run has its own two"
    assert len(list((tmp_path / "scratch" / "followed").iterdir())) == 3, "not even an empty folder is left"


def test_a_checkpoint_that_was_altered_in_the_store_is_left_out_and_leaves_no_files(
    runs: FollowedRuns, save: Save, ends: tuple[SupervisorConnection, TrainerConnection], tmp_path: Path
) -> None:
    first = advanced(runs, ends, save("main", 10))
    save("main", 20)
    (altered,) = (tmp_path / "artifacts").glob("runs/*/1/checkpoints/20/state.json")
    altered.write_text("another")

    def left_out() -> bool:
        runs.poll(ends[0])
        return bool(logs)

    with capture_logs() as logs:
        eventually(left_out)
    third = advanced(runs, ends, save("main", 30))

    assert [entry["event"] for entry in logs] == ["followed_checkpoint_unusable"]
    place = tmp_path / "scratch" / "followed"
    assert set(place.iterdir()) == {Path(first.folder), Path(third.folder)}
