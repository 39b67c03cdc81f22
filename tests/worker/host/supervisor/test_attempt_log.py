"""What is kept of an attempt's log, whatever it writes."""

import json
from pathlib import Path

import pytest

from worker.host.supervisor.attempt_log import END_NAME, NAME, AttemptLog


def append(path: Path, *numbers: int) -> None:
    with path.open("ab") as file:
        for number in numbers:
            file.write(b'{"event": "line", "number": %d}\n' % number)


def published(log: AttemptLog) -> dict[str, str]:
    return {name: file.read_text() for name, file in log.due()}


def numbers(text: str) -> list[int]:
    """Parse every line; a line that was cut in two fails."""
    return [record["number"] for record in map(json.loads, text.splitlines()) if record["event"] == "line"]


def test_a_short_log_is_one_file_that_grows(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "trainer.log", limit=4096)
    before = published(log)
    append(log.path, 1)
    first = published(log)
    again = published(log)
    append(log.path, 2)

    assert (before, again) == ({}, {})
    assert numbers(first[NAME]) == [1]
    assert {name: numbers(text) for name, text in published(log).items()} == {NAME: [1, 2]}


@pytest.mark.parametrize("length", [1, 200], ids=["short", "long"])
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_what_could_not_be_published_is_due_again(tmp_path: Path, length: int, failures: int) -> None:
    """A store was away; it is back, and nothing more is written."""
    log = AttemptLog(tmp_path / "trainer.log", limit=4096)
    append(log.path, *range(length))
    for _ in range(failures):
        for _, _ in log.due():
            break  # as an error of the store does

    kept = published(log)

    assert numbers(kept[NAME])[0] == 0
    assert numbers(kept.get(END_NAME, kept[NAME]))[-1] == length - 1
    assert published(log) == {}


def test_of_a_long_log_the_beginning_and_the_end_are_kept_in_whole_lines(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "trainer.log", limit=4096)
    kept: dict[str, str] = {}
    largest = 0
    for number in range(5000):
        append(log.path, number)
        if number % 37 == 0:
            kept |= published(log)
            largest = max(largest, log.path.stat().st_size, *(len(text) for text in kept.values()))
    kept |= published(log)

    beginning, end = numbers(kept[NAME]), numbers(kept[END_NAME])
    assert beginning == list(range(len(beginning)))
    assert len(kept[NAME]) > 3000
    assert json.loads(kept[NAME].splitlines()[-1])["name"] == END_NAME
    assert end == list(range(end[0], 5000))
    assert len(kept[END_NAME]) >= 2048 - 40
    assert largest < 3 * 4096  # here and on the host's disk


def test_one_flood_between_two_looks_is_cut_too(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "trainer.log", limit=4096)
    append(log.path, *range(10_000))

    kept = published(log)

    assert numbers(kept[NAME])[0] == 0
    assert numbers(kept[END_NAME])[-1] == 9999
    assert log.path.stat().st_size == 0


def handed_over(log: AttemptLog, *, arriving: int) -> list[str]:
    """Publish to a store that takes so many files and then is away; return the names of what it was handed."""
    names: list[str] = []
    for name, _ in log.due():
        names.append(name)
        if len(names) > arriving:
            break
    return names


def test_what_did_not_arrive_is_due_again_though_nothing_is_written_any_more(tmp_path: Path) -> None:
    short, long = (AttemptLog(tmp_path / name, limit=4096) for name in ("short.log", "long.log"))
    append(short.path, *range(10))
    append(long.path, *range(1000))

    assert [handed_over(short, arriving=n) for n in (0, 0, 1, 1)] == [[NAME], [NAME], [NAME], []]
    assert [handed_over(long, arriving=n) for n in (0, 1, 0, 1, 1)] == [
        [NAME],  # it does not arrive
        [NAME, END_NAME],  # the end does not
        [END_NAME],
        [END_NAME],
        [],
    ]
