"""A stored file stays if its row was committed, and only then."""

from pathlib import Path

import pytest

from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import Stored, check_path, published
from server.kit.errors import ArtifactNotFound


def test_a_file_that_is_kept_stays(tmp_path: Path) -> None:
    store, file = FolderStore(tmp_path / "store"), tmp_path / "sent"
    file.write_bytes(b"content")

    with published(store, file, "things/1/file", Stored("1", "things/1", inspected=None)) as stored:
        stored.keep()

    assert store.size("things/1/file") == 7


def test_a_file_whose_row_was_not_committed_goes_with_its_folder(tmp_path: Path) -> None:
    store, file = FolderStore(tmp_path / "store"), tmp_path / "sent"
    file.write_bytes(b"content")

    def commit_in_vain() -> None:
        with published(store, file, "things/1/file", Stored("1", "things/1", inspected=None)):
            assert store.size("things/1/file") == 7
            raise ConnectionError

    with pytest.raises(ConnectionError):
        commit_in_vain()

    with pytest.raises(ArtifactNotFound):
        store.size("things/1/file")
    assert not (tmp_path / "store" / "things" / "1").exists()


def test_a_path_of_plain_segments_is_fine() -> None:
    assert check_path("runs/run_01k6/3/checkpoints/50000-2/Stürmer Nr. 1?team=1.onnx")
