"""Recordings that edge collectors send: strangers write no file of another name, and not more than they may."""

from pathlib import Path

import pytest

from ludus.config.recording import RecordConfig
from worker.collectors.recordings import MOST_OPEN, ReceivedRecordings

RECORD = RecordConfig(total_bytes=1 << 16)
NAME = "0-0-1.ludusrec"


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_parts_become_a_file_of_the_place_with_the_last_one(tmp_path: Path) -> None:
    received = ReceivedRecordings(str(tmp_path / "recordings"))

    received.take(3, f".{NAME}\n".encode() + b"one\n", RECORD)
    assert names(tmp_path) == [f"recordings/edge3-{NAME}.part"]
    received.take(3, f"!{NAME}\n".encode() + b"two", RECORD)

    assert names(tmp_path) == [f"recordings/edge3-{NAME}"]
    assert (tmp_path / "recordings" / f"edge3-{NAME}").read_bytes() == b"one\ntwo"


@pytest.mark.parametrize(
    "head",
    [
        b".../../../etc/passwd\n",
        b"./etc/cron.d/evil\n",
        b".0-0-1.ludusrec/../x.ludusrec\n",
        b".a.ludusrec\n",
        b".ludusrec\n",
        b"?0-0-1.ludusrec\n",
        b"\n",
        b"",
        b".\xff\xfe.ludusrec\n",
        b"." + b"1" * 5000 + b".ludusrec\n",
    ],
)
def test_a_strange_name_writes_nothing(tmp_path: Path, head: bytes) -> None:
    ReceivedRecordings(str(tmp_path / "recordings")).take(0, head + b"content", RECORD)

    assert names(tmp_path) == []


def test_a_place_sends_no_more_bytes_than_the_run_keeps(tmp_path: Path) -> None:
    received = ReceivedRecordings(str(tmp_path))
    for _ in range(10):
        received.take(0, f".{NAME}\n".encode() + bytes(1 << 14), RECORD)
    received.take(1, f".{NAME}\n".encode() + b"another's", RECORD)

    assert (tmp_path / f"edge0-{NAME}.part").stat().st_size == 1 << 16
    assert (tmp_path / f"edge1-{NAME}.part").read_bytes() == b"another's"


def test_a_place_opens_no_more_files_than_it_records_sessions(tmp_path: Path) -> None:
    received = ReceivedRecordings(str(tmp_path))
    for number in range(200):
        received.take(0, f".0-0-{number}.ludusrec\n".encode() + b"a", RECORD)

    assert len(names(tmp_path)) == RECORD.sessions + MOST_OPEN


def test_what_a_collector_has_not_sent_when_it_ends_is_complete(tmp_path: Path) -> None:
    received = ReceivedRecordings(str(tmp_path))
    received.take(0, f".{NAME}\n".encode() + b"a", RECORD)
    received.take(1, f".{NAME}\n".encode() + b"b", RECORD)

    received.complete(0)
    received.complete(7)

    assert names(tmp_path) == [f"edge0-{NAME}", f"edge1-{NAME}.part"]


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    received = ReceivedRecordings(None)
    received.take(0, f".{NAME}\n".encode() + b"a", RECORD)
    received.complete(0)

    assert names(tmp_path) == []


def test_a_disk_without_room_costs_the_recording_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    ReceivedRecordings(str(tmp_path / "file")).take(0, f".{NAME}\n".encode() + b"a", RECORD)

    assert names(tmp_path) == ["file"]
