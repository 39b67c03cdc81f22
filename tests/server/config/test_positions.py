"""The line and column of a problem are those of the key that its path leads to."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.config.problems import join_path
from server.config.document import MAX_DEPTH, locate, located
from server.kit.errors import InvalidConfig, Problem
from tests.examples import examples

Parts = tuple[str | int, ...]
Position = tuple[int | None, int | None]

KEY = st.sampled_from(["a", "b", "my.bot", "<<", 'x"y', "[0]", ""]) | st.text(
    st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=5
)
VALUE = st.recursive(
    st.none() | st.integers() | st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=12,
)
DOCUMENT = st.dictionaries(KEY, VALUE, min_size=1, max_size=4)


class Block:
    """Writes a document as YAML in block style, a key on each line, and notes where each key stands."""

    def __init__(self, document: dict[str, Any], comment: bool) -> None:
        self.positions: dict[Parts, Position] = {}
        self._lines = ["# a comment", ""] if comment else []
        self._comment = comment
        self.positions[()] = self._write(document, 0, ())

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def _write(self, value: Any, indent: int, path: Parts) -> Position:
        """Write a value that is not empty, and return where it begins."""
        begin: Position | None = None
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if self._comment:
                self._lines.append("  # between")
            here = (len(self._lines) + 1, indent + 1)
            begin = begin or here
            inner = isinstance(item, dict | list) and item
            head = f"{json.dumps(key)}:" if isinstance(value, dict) else "-"
            self._lines.append(" " * indent + head + ("" if inner else " " + json.dumps(item)))
            nested = self._write(item, indent + 2, (*path, key)) if inner else (here[0], here[1] + 2)
            self.positions[(*path, key)] = here if isinstance(value, dict) else nested
        assert begin is not None
        return begin


class Flow:
    """Writes a document as JSON, with as many line breaks as `breaks` says, and notes where each key stands."""

    def __init__(self, document: dict[str, Any], breaks: str) -> None:
        self.positions: dict[Parts, Position] = {}
        self.text = ""
        self._breaks = breaks
        self.positions[()] = self._here()
        self._write(document, ())

    def _here(self) -> Position:
        return self.text.count("\n") + 1, len(self.text) - self.text.rfind("\n")

    def _write(self, value: Any, path: Parts) -> None:
        if not isinstance(value, dict | list):
            self.text += json.dumps(value)
            return
        self.text += "{" if isinstance(value, dict) else "["
        for number, (key, item) in enumerate(value.items() if isinstance(value, dict) else enumerate(value)):
            self.text += ("," if number else "") + self._breaks
            self.positions[(*path, key)] = self._here()
            if isinstance(value, dict):
                self.text += f"{json.dumps(key)}:{self._breaks}"
            self._write(item, (*path, key))
        self.text += self._breaks + ("}" if isinstance(value, dict) else "]")


def position(document: Any, *path: str | int, overrides: dict[str, Any] | None = None) -> Position:
    [found] = locate(document, [Problem(join_path(path), "wrong_type", "must be other")], overrides)
    return found.line, found.column


@settings(deadline=None, max_examples=examples(150))
@given(DOCUMENT, st.booleans(), st.sampled_from([None, "", " ", "\n", "\n\t"]))
def test_every_key_of_any_document_is_found_on_its_line(
    document: dict[str, Any], comment: bool, breaks: str | None
) -> None:
    written = Block(document, comment) if breaks is None else Flow(document, breaks)
    problems = [Problem(join_path(path), "wrong_type", "must be other") for path in written.positions]

    found = locate(written.text, problems)

    assert [(each.line, each.column) for each in found] == list(written.positions.values())


@settings(deadline=None, max_examples=examples(50))
@given(DOCUMENT, st.lists(KEY | st.integers(5, 9), min_size=1, max_size=3))
def test_what_the_text_does_not_have_is_where_its_nearest_parent_is(
    document: dict[str, Any], missing: list[str | int]
) -> None:
    written = Block(document, comment=True)

    for parent, expected in written.positions.items():
        path = (*parent, *missing)
        nearest = next(path[:end] for end in range(len(path), -1, -1) if path[:end] in written.positions)
        if nearest == parent:
            assert position(written.text, *path) == expected


def test_lines_end_as_on_any_system_and_a_byte_order_mark_is_no_column() -> None:
    text = "\ufeffa: 1\r\nb:\r\n  - c: 2\r\n    d: 3\r\n"

    assert position(text, "a") == position(text.encode(), "a") == (1, 1)
    assert position(text, "b", 0, "d") == (4, 5)


def test_what_an_alias_or_a_merge_key_brings_is_where_it_was_written() -> None:
    text = "a: &a {x: 1,\n y: 1}\nb: &b\n  y: 2\n  z: 2\nc:\n  z: 3\n  <<: [*a, *b]\nd: *b\n"

    assert position(text, "c") == (6, 1)
    assert position(text, "c", "y") == (2, 2)
    assert position(text, "c", "z") == (7, 3)
    assert position(text, "d") == (9, 1)
    assert position(text, "d", "z") == (5, 3)


def test_a_value_that_an_override_has_set_stands_nowhere_in_the_text() -> None:
    text = "behaviors:\n  my.bot:\n    max_steps: 5\n    summary_freq: 10\n"
    path = ("behaviors", "my.bot")
    flat, nested = {'behaviors."my.bot".max_steps': -1}, {"behaviors": {"my.bot": {"max_steps": {"x": 1}}}}

    assert position(text, *path, "max_steps", overrides=flat) == (None, None)
    assert position(text, *path, "max_steps", "x", overrides=nested) == (None, None)
    assert position(text, *path, "max_steps", overrides=nested) == (3, 5)
    assert position(text, *path, "summary_freq", overrides=flat) == (4, 5)
    assert position(text, *path, overrides=flat) == (2, 3)
    assert position(text, "behaviors.x", overrides={"behaviors.x": float("nan")}) == (None, None)
    malformed = Problem("behaviors..x", "unknown_key", "is no path")
    assert list(locate(text, [malformed], {"behaviors..x": 1})) == [malformed]


@pytest.mark.parametrize(
    "document",
    [
        None,
        {"a": 1},
        '{"a": "\\ud83d\\ude00"}',
        '{"a": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}",
        "a: [1",
        "a: &x [*x]",
        b"\xff",
    ],
    ids=["nothing", "mapping", "JSON that YAML cannot read", "too deep", "broken", "endless", "no text"],
)
def test_a_problem_has_no_position_where_there_is_no_text_that_yaml_reads(document: Any) -> None:
    assert position(document, "a") == (None, None)


def test_a_problem_that_the_reader_found_keeps_its_position() -> None:
    known = Problem("a", "invalid_syntax", "is broken", 7, 9)

    assert list(locate("a: 1", [known])) == [known]


def test_a_refusal_says_where_each_problem_is() -> None:
    with pytest.raises(InvalidConfig) as caught, located("a: 1\nb:\n  c: 2"):
        raise InvalidConfig([Problem("b.c", "wrong_type", "must be text"), Problem("a", "missing", "is missing")])

    assert str(caught.value) == "line 3, column 3: b.c: must be text\nline 1, column 1: a: is missing"
