"""docs/operations.md names defaults and bounds: those of the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.controller import controller
from server.gateway import main as gateway
from server.kit.db import database
from server.kit.settings import Settings
from server.lifecycle import retention as rows
from server.metrics import jobs as metrics
from worker.host import tasks

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
DAY = 86400.0
CONNECTIONS = {
    "api": database.CONNECTIONS,
    "gateway": gateway.CONNECTIONS,
    "controller": controller.CONNECTIONS,
    "slot of a worker": tasks.CONNECTIONS,
}


def section(heading: str) -> str:
    """Return the text below a heading of the second level."""
    _, _, rest = PAGE.partition(f"\n## {heading}\n")
    assert rest, heading
    return rest.partition("\n## ")[0]


def lives() -> Iterator[tuple[str, list[str]]]:
    """Yield how long a row of the tables says that something is kept, and the settings that it names."""
    for line in section("What is kept, and for how long").splitlines():
        cells = line.split("|")
        if len(cells) == 5 and (names := list(_settings(cells[3]))):
            yield cells[2], names


def _settings(cell: str) -> Iterator[str]:
    """Yield the settings of a cell, in which `__NAME` is of the group that was named before."""
    group = ""
    for name in re.findall(r"`(\w+)`", cell):
        group = name.rpartition("__")[0] or group
        yield f"{group}__{name.rpartition('__')[2]}"


def default(name: str) -> Any:
    group, _, field = name.removeprefix("LUDUS_").lower().partition("__")
    return type(getattr(Settings(), group)).model_fields[field].default


def test_a_process_has_as_many_connections_as_the_page_says() -> None:
    text = section("How many connections")
    told = {name: int(number) for name, number in re.findall(r"^\| ([a-z ]+) \| (\d+) \|$", text, re.MULTILINE)}
    api, gate, control, slot = CONNECTIONS.values()

    assert told == CONNECTIONS
    assert f"**{api} x apis + {gate} x gateways + {control} x controllers + {slot} x slots + 20**" in text
    for slots, words in ((100, "100 slots need {}"), (1000, "1,000 slots {}")):
        assert words.format(f"{2 * (api + gate + control) + slots * slot + 20:,}") in text


@pytest.mark.parametrize(("kept", "names"), [*lives()], ids=lambda value: value[0] if isinstance(value, list) else "")
def test_what_is_kept_is_kept_for_as_long_as_the_page_says(kept: str, names: list[str]) -> None:
    defaults = {name: default(name) for name in names}
    days = [
        value / (1 if name.endswith("_DAYS") else DAY)
        for name, value in defaults.items()
        if name.endswith(("_DAYS", "_SECONDS")) and isinstance(value, int | float)
    ]

    assert [float(number) for number in re.findall(r"(\d+) days?\b", kept)] == days
    assert ("limit" in kept) == (None in defaults.values())


def test_the_page_names_each_setting_of_a_life() -> None:
    groups = {"controller": Settings().controller, "metrics": Settings().metrics}
    every = {
        f"LUDUS_{group}__{field}".upper()
        for group, settings in groups.items()
        for field in type(settings).model_fields
        if field.endswith("_days")
    }

    assert every <= {name for _, names in lives() for name in names}


def test_rounds_delete_and_look_at_as_much_as_the_page_says() -> None:
    text = " ".join(section("What is kept, and for how long").split())

    assert (rows.PAUSE_SECONDS, metrics.ROUND_SECONDS, metrics.FIRST_SECONDS) == (60, 300, 3600)
    assert "deletes old rows once a minute" in text
    assert f"at most {rows.ROWS * rows.BATCHES:,} of a kind, in transactions of {rows.ROWS:,}" in text
    assert f"`RUN_DAYS` (at most {rows.RUNS} runs a minute)" in text
    assert f"at most {rows.RUN_BATCHES} transactions of {rows.ROWS:,} a minute for all deleted runs together" in text
    assert f"looks at {rows.LOOKED_AT} runs and {rows.LOOKED_AT} ladders a minute" in text
    assert "archives and thins every five minutes, one run after the other, and begins an hour after its start" in text
