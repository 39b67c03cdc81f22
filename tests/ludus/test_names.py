"""Names and tags: their rules, and the name that is closest to a text."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.names import MAX_NAME, is_name, is_tag, to_name


@pytest.mark.parametrize(
    "name", ["nightly", "new_0.1", "Jäger", "猫", "คีร์", "हिन्दी", "x" * MAX_NAME, "7", "v2-b.1_c", "Соккер", "כדור"]
)
def test_names_are_of_any_alphabet(name: str) -> None:
    assert is_name(name)
    assert to_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a/b", "x:stop", "-rf", ".x", "_x", "a\n", "a\0", "100%", "a?b", "🚀", "x" * 201, "e\u0301"],
)
def test_what_means_something_in_an_address_or_a_command_is_no_name(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize(
    "tag", ["ci", "key:value", "a,b", "kätzchen", "🚀", "dataset:iory/apart", "lr 1e-3", "x" * 100]
)
def test_tags_are_what_people_write(tag: str) -> None:
    assert is_tag(tag)


@pytest.mark.parametrize("tag", ["", " ", " ci", "ci ", "tab\t", "a\nb", "night*", "x" * 101, "a\0b", "\u202eevil"])
def test_tags_can_be_seen_and_filtered_by(tag: str) -> None:
    assert not is_tag(tag)


@pytest.mark.parametrize(
    ("text", "name"),
    [("Soccer 1/b", "Soccer-1-b"), ("_x", "x"), ("My boss fight v2", "My-boss-fight-v2"), ("...", None), ("🚀", None)],
)
def test_a_text_gives_its_name_as_far_as_names_go(text: str, name: str | None) -> None:
    assert to_name(text) == name


@given(st.text())
def test_the_closest_name_is_one(text: str) -> None:
    name = to_name(text)

    assert name is None or is_name(name)
    if is_name(unicodedata.normalize("NFC", text)):
        assert name == unicodedata.normalize("NFC", text)
