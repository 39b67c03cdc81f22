"""Uploaded files are told from what they can't be, without torch and without executing anything."""

import zipfile
from pathlib import Path

import pytest

from server.checkpoints.uploads import inspect
from server.errors import CheckpointInvalid

RESULTS = Path(__file__).parents[2] / "data" / "mlagents-results"
SAC = RESULTS / "sac-replay-buffer" / "checkpoint.pt"


def test_a_checkpoint_of_ml_agents_is_known_by_its_modules() -> None:
    found = inspect(SAC)

    assert found.modules == (
        "Policy",
        "Optimizer:q_network",
        "Optimizer:value_network",
        "Optimizer:target_network",
        "Optimizer:policy_optimizer",
        "Optimizer:value_optimizer",
        "Optimizer:entropy_optimizer",
    )
    assert found.size == SAC.stat().st_size


def archive(path: Path, *, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as written:
        for name, content in entries.items():
            written.writestr(name.replace("__", "/").replace("_pkl", ".pkl"), content)
    return path


POLICY = b"\x80\x02X\x06\x00\x00\x00Policyq\x00."
"""A pickle of the text `Policy`."""


def test_modules_are_read_from_the_pickle_in_the_archive(tmp_path: Path) -> None:
    assert inspect(archive(tmp_path / "c.pt", archive__data_pkl=POLICY)).modules == ("Policy",)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({}, "no data.pkl"),
        ({"archive__version": b"3"}, "no data.pkl"),
        ({"data_pkl": POLICY}, "no data.pkl"),
        ({"a__data_pkl": POLICY, "b__data_pkl": POLICY}, "no data.pkl"),
        ({"archive__data_pkl": b"\x80\x02X\x05\x00\x00\x00modelq\x00."}, "no module 'Policy'"),
        ({"archive__data_pkl": b"\x80\x02X\x06\x00"}, "damaged"),
        ({"archive__data_pkl": b"\xff\xff\xff"}, "damaged"),
        ({"archive__data_pkl": b""}, "damaged"),
    ],
)
def test_other_archives_are_refused(tmp_path: Path, entries: dict[str, bytes], reason: str) -> None:
    with pytest.raises(CheckpointInvalid, match=reason):
        inspect(archive(tmp_path / "c.pt", **entries))


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    """They could unpack to anything."""
    path = archive(tmp_path / "c.pt", compression=zipfile.ZIP_DEFLATED, archive__data_pkl=POLICY + bytes(10_000))

    with pytest.raises(CheckpointInvalid, match="compressed"):
        inspect(path)


@pytest.mark.parametrize("size", [0, 1, 1000, -1])
def test_what_is_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "c.pt").write_bytes(SAC.read_bytes()[:size])

    with pytest.raises(CheckpointInvalid, match=r"no archive as torch\.save writes it"):
        inspect(tmp_path / "c.pt")


def test_a_model_is_refused_with_the_file_to_take_instead() -> None:
    with pytest.raises(CheckpointInvalid, match=r"upload the checkpoint\.pt"):
        inspect(SAC.with_name("A.onnx"))
