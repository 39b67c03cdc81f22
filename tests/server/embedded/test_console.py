"""What `ludus up` shows of its children's logs."""

import json
from pathlib import Path

import pytest

from server.embedded import console
from server.embedded.console import Console, LogTail


def record(level: str, event: str, **context: object) -> str:
    return json.dumps(
        {"timestamp": "2026-01-01T00:00:00Z", "level": level, "event": event, "process": "api", **context}
    )


def shown(path: Path, level: str = "warning") -> list[str]:
    written: list[str] = []
    Console(written.append, level).show(LogTail("api", path))
    return [line.split(maxsplit=1)[1] for line in written]


def test_warnings_and_errors_are_shown_in_one_line_with_their_context(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    trace = "Traceback (most recent call last):\n  ...\nValueError: no"
    log.write_text(
        f"{record('info', 'request_answered')}\n"
        f"{record('warning', 'lease_late', run_id='r1')}\n"
        f"{record('error', 'request_failed', exception=trace)}\n"
    )

    assert shown(log) == ["api      lease_late run_id=r1", "api      request_failed ValueError: no"]
    assert len(shown(log, "info")) == 3


def test_plain_text_stays_in_the_file(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    log.write_text("a library says hello\n[1, 2]\n{}\n")

    assert shown(log, "debug") == []


def test_a_line_is_shown_once_and_when_it_is_complete(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    tail = LogTail("api", log)
    assert list(tail.lines()) == []
    with log.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert list(tail.lines()) == ["one"]
        file.write("o\n")
        file.flush()
        assert list(tail.lines()) == ["two"]


def test_a_log_that_grows_large_is_put_aside_and_its_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "LARGEST_LOG_BYTES", 10)
    log = tmp_path / "api.log"
    tail = LogTail("api", log)
    with log.open("ab", buffering=0) as writer:  # as a child's descriptor: it appends
        writer.write(b"more than ten bytes\n")
        assert list(tail.lines()) == ["more than ten bytes"]
        writer.write(b"next\n")

    assert log.read_bytes() == b"next\n"
    assert (tmp_path / "api.log.1").read_bytes() == b"more than ten bytes\n"
    assert list(tail.lines()) == ["next"]
    assert tail.last_lines(5) == ["next"]


def test_a_closed_terminal_does_not_stop_the_stack() -> None:
    def closed(_text: str) -> None:
        raise BrokenPipeError

    Console(closed).say("nobody reads this")
