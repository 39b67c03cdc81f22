"""Checkpoints of our own as one file: looked into before they are kept."""

import json
import zipfile
from pathlib import Path

import pytest

from server.checkpoints.refs import CheckpointInvalid
from server.checkpoints.uploads import inspect


def archive(path: Path, manifest: str, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("state.safetensors", b"weights")
        file.writestr("state.json", manifest)
    return path


def test_the_behaviors_of_an_archive_are_named(tmp_path: Path) -> None:
    found = inspect(archive(tmp_path / "checkpoint.pt", json.dumps({"state": {"Walker": {}, "Runner": {}}})))

    assert (found.format, found.modules) == ("ludus", ("Walker", "Runner"))


@pytest.mark.parametrize("manifest", ["", "[]", "{}", '{"state": {}}', '{"state": 1}', "[" * 100_000])
def test_an_archive_without_a_manifest_is_refused(tmp_path: Path, manifest: str) -> None:
    with pytest.raises(CheckpointInvalid):
        inspect(archive(tmp_path / "checkpoint.pt", manifest))


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match="compressed"):
        inspect(archive(tmp_path / "checkpoint.pt", json.dumps({"state": {"A": {}}}), zipfile.ZIP_DEFLATED))
