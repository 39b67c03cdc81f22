"""Records from JSON: what newer and older servers send, and what is no record at all."""

import dataclasses
import importlib
import pkgutil
from datetime import UTC, datetime
from typing import Any

import pytest

from ludus import schemas as records
from ludus.reading import read_record
from ludus.schemas import ConfigProblem, ConfigUpgrade, Event, PlannedRun, Series

EVENT = {"seq": 1, "at": "2026-01-02T03:04:05Z", "type": "run_created", "level": "info", "message": "Created."}


def test_times_are_aware_and_missing_fields_take_their_defaults() -> None:
    event = read_record(Event, EVENT)

    assert event.at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (event.attempt, event.data) == (None, {})


def test_a_field_of_a_newer_server_is_ignored() -> None:
    assert read_record(Event, {**EVENT, "mood": "cheerful"}) == read_record(Event, EVENT)


def test_records_within_records_are_read_across_modules() -> None:
    problem = {"path": "behaviors", "code": "missing", "message": "is missing"}
    found = read_record(
        ConfigUpgrade, {"document": "", "unchanged": True, "changes": [], "dropped": [], "problems": [problem]}
    )

    assert found.problems == (ConfigProblem(path="behaviors", code="missing", message="is missing"),)


def test_gaps_in_a_column_stay_gaps() -> None:
    column = {"behavior": "", "key": "reward", "total": 2, "steps": [1, 2], "times": [EVENT["at"]] * 2}
    found = read_record(Series, {**column, "values": [None, 2.0], "minima": [], "maxima": [], "counts": [1, 1]})

    assert found.values == (None, 2.0)


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (Event, ["seq"], "list is no Event"),
        (Event, {"seq": 1}, r"no Event: .*missing 4 required"),
        (Event, {**EVENT, "at": "yesterday"}, "yesterday"),
        (PlannedRun, {"warnings": ["careful"]}, "str is no ConfigWarning"),
    ],
)
def test_what_is_no_record_is_named(kind: type[Any], data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_record(kind, data)


def test_every_record_can_be_imported_from_the_package() -> None:
    modules = [
        importlib.import_module(f"{records.__name__}.{info.name}") for info in pkgutil.iter_modules(records.__path__)
    ]
    defined = {
        name
        for module in modules
        for name, value in vars(module).items()
        if dataclasses.is_dataclass(value) and value.__module__ == module.__name__
    }

    assert defined <= vars(records).keys()
