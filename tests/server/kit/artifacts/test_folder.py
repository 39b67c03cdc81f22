"""The folder of artifacts: complete or not there, inside its root, checksummed."""

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from server.kit.artifacts import folder as artifacts
from server.kit.artifacts.folder import FolderStore
from server.kit.artifacts.store import FileRef
from server.kit.errors import ArtifactNotFound, InvalidArtifactPath, StorageFull, StorageRefused, StorageUnavailable


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "models").mkdir(parents=True)
    (folder / "state.safetensors").write_bytes(b"weights" * 1000)
    (folder / "models" / "CartPole.onnx").write_bytes(b"model")
    return folder


def everything(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def test_a_published_folder_comes_back_with_sizes_and_digests(store: FolderStore, source: Path) -> None:
    files = store.publish(source, "runs/run_1/1/checkpoints/100-1")

    assert files == [
        FileRef("models/CartPole.onnx", 5, hashlib.sha256(b"model").hexdigest()),
        FileRef("state.safetensors", 7000, hashlib.sha256(b"weights" * 1000).hexdigest()),
    ]
    with store.open("runs/run_1/1/checkpoints/100-1/models/CartPole.onnx") as file:
        assert file.read() == b"model"
    assert store.size("runs/run_1/1/checkpoints/100-1/state.safetensors") == 7000


def test_a_single_file_is_published_and_replaced(store: FolderStore, tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("one")
    store.publish(log, "runs/run_1/1/logs/trainer.log")
    log.write_text("one two")

    (file,) = store.publish(log, "runs/run_1/1/logs/trainer.log")

    assert file.size == 7
    with store.open("runs/run_1/1/logs/trainer.log", 4) as published:
        assert published.read() == b"two"


def test_publishing_the_same_folder_again_is_harmless_and_another_is_refused(store: FolderStore, source: Path) -> None:
    first = store.publish(source, "runs/a/1/c")

    assert store.publish(source, "runs/a/1/c") == first
    (source / "state.safetensors").write_bytes(b"other")
    with pytest.raises(FileExistsError, match="never changes"):
        store.publish(source, "runs/a/1/c")
    assert store.size("runs/a/1/c/state.safetensors") == 7000


def test_a_full_disk_changes_nothing_and_says_what_to_do(
    store: FolderStore, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.publish(source, "runs/a/1/old")
    before = everything(tmp_path / "store")

    def full(_descriptor: int) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(artifacts.os, "fsync", full)
    with pytest.raises(StorageFull, match=r"7005 bytes.*Free space") as caught:
        store.publish(source, "runs/a/1/new")

    assert caught.value.needed == 7005
    assert everything(tmp_path / "store") == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_write_that_the_device_refuses_is_told_as_a_full_disk() -> None:
    def write_to_a_full_device() -> None:
        with artifacts._translated_errors("runs/a/1/c"), Path("/dev/full").open("wb") as file:
            file.write(b"x")
            file.flush()

    with pytest.raises(StorageFull):
        write_to_a_full_device()


def test_other_errors_are_not_called_a_full_disk(store: FolderStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.publish(tmp_path / "missing", "runs/a/1/c")


@pytest.mark.parametrize(
    "path",
    ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/./b", ".hidden", "a/.tmp", "a\\b", "a\x00", " a", "x" * 201, "a/"],
)
def test_a_path_that_could_leave_the_store_is_refused(store: FolderStore, source: Path, path: str) -> None:
    for refused in (lambda: store.publish(source, path), lambda: store.open(path), lambda: store.delete(path)):
        with pytest.raises(InvalidArtifactPath):
            refused()


def test_a_link_to_the_outside_is_not_served(store: FolderStore, source: Path, tmp_path: Path) -> None:
    store.publish(source, "runs/a/1/c")
    (tmp_path / "store/runs/a/1/c/leak").symlink_to("/etc/hostname")

    with pytest.raises(ArtifactNotFound):
        store.open("runs/a/1/c/leak")


def test_deleting_removes_a_folder_once_and_for_all(store: FolderStore, source: Path, tmp_path: Path) -> None:
    store.publish(source, "runs/a/1/c")

    store.delete("runs/a/1/c")
    store.delete("runs/a/1/c")

    assert everything(tmp_path / "store") == {"runs", "runs/a", "runs/a/1"}
    with pytest.raises(ArtifactNotFound, match="retention"):
        store.open("runs/a/1/c/state.safetensors")


def test_a_folder_is_no_file(store: FolderStore, source: Path) -> None:
    store.publish(source, "runs/a/1/c")

    with pytest.raises(ArtifactNotFound):
        store.size("runs/a/1/c")


def test_every_published_file_is_listed_and_nothing_in_the_making(
    store: FolderStore, source: Path, tmp_path: Path
) -> None:
    store.publish(source, "runs/a/1/checkpoints/100-1")
    killed = tmp_path / "store/runs/a/1/checkpoints/.0123.tmp"
    killed.mkdir()
    (killed / "state.json").write_text("{}")

    found = {stored.path: stored.size for stored in store.files("runs")}

    prefix = "runs/a/1/checkpoints/100-1"
    assert found == {f"{prefix}/models/CartPole.onnx": 5, f"{prefix}/state.safetensors": 7000}
    assert list(store.files("checkpoints")) == []


def test_what_a_kill_left_behind_is_swept_away_when_nobody_has_touched_it_for_long(
    store: FolderStore, source: Path, tmp_path: Path
) -> None:
    store.publish(source, "runs/a/1/checkpoints/100-1")
    before = everything(tmp_path / "store")
    old, new = tmp_path / "store/runs/a/1/checkpoints/.0123.tmp", tmp_path / "store/runs/a/.4567.tmp"
    for killed in (old, new):
        killed.mkdir()
        (killed / "state.json").write_text("{}")
    for path in (old / "state.json", old):
        os.utime(path, (1.0, 1.0))

    assert store.sweep(3600) == 1

    assert everything(tmp_path / "store") == before | {"runs/a/.4567.tmp", "runs/a/.4567.tmp/state.json"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_not_ours_to_write_to_is_named(store: FolderStore, source: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o500)

    with pytest.raises(StorageRefused, match="let this process write there"):
        store.publish(source, "runs/a/1/c")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.ENFILE])
def test_a_disk_that_fails_may_be_tried_again(
    store: FolderStore, source: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Reading, too: the retention job's thread would end the controller."""
    store.publish(source, "runs/a/1/c")
    file = next(store.files("runs")).path

    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    for call, act in {
        "os.fsync": lambda: store.publish(source, "runs/a/1/d"),
        "pathlib.Path.stat": lambda: store.size(file),
        "pathlib.Path.open": lambda: store.open(file),
        "pathlib.Path.rename": lambda: store.delete("runs/a/1/c"),
    }.items():
        with monkeypatch.context() as broken:
            broken.setattr(call, fail)
            with pytest.raises(StorageUnavailable, match="Try again"):
                act()
    with monkeypatch.context() as broken:
        broken.setattr("pathlib.Path.stat", fail)
        with pytest.raises(StorageUnavailable, match="Try again"):
            list(store.files("runs"))


def test_a_publication_that_is_killed_half_way_is_not_there_and_swept_away_later(
    store: FolderStore, source: Path, tmp_path: Path
) -> None:
    stuck = "tests.server.kit.artifacts.stuck_publisher"
    command = [sys.executable, "-m", stuck, str(tmp_path / "store"), str(source), "runs/a/1/checkpoints/100-1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publishing:
        assert publishing.stdout is not None
        assert publishing.stdout.readline() == "in the middle\n"
        publishing.kill()

    assert list(store.files("runs")) == []
    assert store.sweep(-60) == 1
    assert {path.name for path in (tmp_path / "store").rglob("*")} == {"runs", "a", "1", "checkpoints"}
    assert len(store.publish(source, "runs/a/1/checkpoints/100-1")) == 2
