"""Values on the command line are read as a configuration reads them, numbers with exponents included."""

import json
from typing import Any

import click
import pytest

from ludus.cli.options import assignment
from server.config.document import parse_document


def read(text: str) -> Any:
    return assignment.convert(f"key={text}", None, None)[1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-5E-2", -0.05),
        (".5", 0.5),
        (".5e1", 5.0),
        ("2.5e3", 2500.0),
        ("1_0e-1", 1.0),
        ("1e+2", 100),
        ("[1e-3, 1e1]", [0.001, 10]),
        ("{rate: 1e-4}", {"rate": 0.0001}),
    ],
)
def test_a_number_with_an_exponent_is_a_number(text: str, value: Any) -> None:
    assert read(text) == value
    assert not isinstance(read(text), str)


def test_a_whole_number_with_an_exponent_can_be_counted_with() -> None:
    assert list(range(read("1e1"))) == list(range(10))


@pytest.mark.parametrize("text", ["'1e3'", '"1e-3"', "e3", "1e", "1e-", "v1e3", "1e3x", "1e3.5"])
def test_other_texts_stay_texts(text: str) -> None:
    assert read(text) == text.strip("'\"")


@pytest.mark.parametrize(
    "text",
    [
        "010",
        "0x10",
        "0b11",
        "on",
        "off",
        "yes",
        "No",
        "~",
        "null",
        "1:30",
        "1_000",
        "2024-01-31",
        "2024-01-31 10:00:00",
        "3",
        "-7",
        "1.5",
        "text",
        "[a, 2]",
        "{a: 010}",
        "=",
        "0o17",
        "1.0e+3",
    ],
)
def test_all_else_is_read_as_in_a_configuration_and_can_travel_to_the_processes(text: str) -> None:
    assert read(text) == parse_document(f"key: {text}")["key"]
    json.dumps(read(text))


@pytest.mark.parametrize("text", ["1e999", "!!python/name:os.system", "[1, 2"])
def test_what_is_no_value_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not valid YAML"):
        read(text)
