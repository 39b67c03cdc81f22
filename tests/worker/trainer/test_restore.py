"""What is brought from the artifact store is what was stored, or is refused."""

import hashlib
from pathlib import Path

import pytest

from server.demonstrations.refs import DemonstrationRef
from server.kit.artifacts.folder import FolderStore
from worker.trainer.restore import DemonstrationUnusable, fetch_demonstrations


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path / "artifacts")
    (tmp_path / "shown.npz").write_bytes(b"shown")
    store.publish(tmp_path / "shown.npz", "demonstrations/dem_1/dem_1.npz")
    return store


def ref(name: str = "dem_1", sha256: str = hashlib.sha256(b"shown").hexdigest()) -> DemonstrationRef:
    return DemonstrationRef(name, f"walk of {name}", f"demonstrations/{name}/{name}.npz", sha256)


def test_demonstrations_lie_in_the_folder_under_their_ids(store: FolderStore, tmp_path: Path) -> None:
    found = fetch_demonstrations(store, [ref()], tmp_path / "scratch")

    assert found == {"dem_1": str(tmp_path / "scratch" / "dem_1.npz")}
    assert Path(found["dem_1"]).read_bytes() == b"shown"


def test_a_run_without_demonstrations_fetches_none(store: FolderStore, tmp_path: Path) -> None:
    assert fetch_demonstrations(store, [], tmp_path / "scratch") == {}


def test_a_file_that_is_missing_is_named(store: FolderStore, tmp_path: Path) -> None:
    with pytest.raises(DemonstrationUnusable, match=r"demonstration walk of dem_2 \(dem_2\) is missing"):
        fetch_demonstrations(store, [ref("dem_2")], tmp_path / "scratch")


def test_a_file_that_has_changed_is_not_used(store: FolderStore, tmp_path: Path) -> None:
    with pytest.raises(DemonstrationUnusable, match="has the SHA-256"):
        fetch_demonstrations(store, [ref(sha256="0" * 64)], tmp_path / "scratch")
