"""Uploaded files are told from what they can't be, without torch and without executing anything."""

import zipfile
from pathlib import Path

import pytest

from server.checkpoints.refs import CheckpointInvalid
from server.checkpoints.uploads import inspect

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


@pytest.mark.parametrize("size", [0, 1, 1000, -1])
def test_what_is_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "c.pt").write_bytes(SAC.read_bytes()[:size])

    with pytest.raises(CheckpointInvalid, match=r"no archive as torch\.save writes it"):
        inspect(tmp_path / "c.pt")


def test_a_model_is_refused_with_the_file_to_take_instead() -> None:
    with pytest.raises(CheckpointInvalid, match=r"upload the checkpoint\.pt"):
        inspect(SAC.with_name("A.onnx"))


@pytest.mark.parametrize(
    "name", ["Optimizer:\ud800", "Optimizer:\0", "Module:\x1b[31mred", "Optimizer:two\nlines", "Module:\x9b31m"]
)
def test_no_name_of_a_module_is_kept_that_cannot_be_stored_or_printed(tmp_path: Path, name: str) -> None:
    text = name.encode(errors="surrogatepass")
    pickled = POLICY[:-1] + b"X" + len(text).to_bytes(4, "little") + text + b"."

    assert inspect(archive(tmp_path / "c.pt", archive__data_pkl=pickled)).modules == ("Policy",)


@pytest.mark.parametrize("name", ["\\ud800", "\\u0000", "\\u001b[31mred", "two\\nlines", ""])
def test_a_checkpoint_of_ours_names_behaviors_that_a_simulator_can_have(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "c.pt", "w") as written:
        written.writestr("state.json", f'{{"state": {{"A": 1, "{name}": 2}}}}')
        written.writestr("state.safetensors", b"")

    with pytest.raises(CheckpointInvalid, match="names a behavior"):
        inspect(tmp_path / "c.pt")


def test_a_file_damaged_anywhere_is_a_checkpoint_or_refused_by_name(tmp_path: Path) -> None:
    whole = archive(tmp_path / "c.pt", archive__data_pkl=POLICY, archive__version=b"3").read_bytes()
    refused = 0

    for position in range(len(whole)):
        for flipped in (0x01, 0x20, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[position] ^= flipped
            (tmp_path / "c.pt").write_bytes(damaged)
            try:
                inspect(tmp_path / "c.pt")
            except CheckpointInvalid:
                refused += 1

    assert refused > len(whole)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
def test_packed_entries_are_refused(tmp_path: Path, method: int) -> None:
    with pytest.raises(CheckpointInvalid, match=r"packed by method|are compressed"):
        inspect(archive(tmp_path / "c.pt", compression=method, archive__data_pkl=POLICY))
