"""Codes and paths of mistakes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.config.problems import join_path, parse_path, show, split_path


def test_a_path_joins_keys_by_dots_and_puts_indices_in_brackets() -> None:
    assert join_path(["behaviors", "my.bot", "list", 3, "", 'a"b']) == 'behaviors."my.bot".list[3]."".' + r'"a\"b"'


@settings(deadline=None)
@given(st.lists(st.text(), min_size=1))
def test_splitting_reverses_joining(keys: list[str]) -> None:
    assert split_path(join_path(keys)) == keys


@settings(deadline=None)
@given(st.lists(st.text() | st.integers(0, 10**6)))
def test_parsing_reverses_joining_of_keys_and_indices(parts: list[str | int]) -> None:
    assert parse_path(join_path(parts)) == parts


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", 'a"b', '"a"b', "a[0]", '"a'])
def test_a_malformed_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a path of keys"):
        split_path(path)


def test_values_are_shown_short() -> None:
    assert show("x") == '"x"'
    assert show(None) == "null"
    assert show([1]) == "[1]"
    assert len(show("x" * 1000)) == 60
