import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.schemas.states import RunState
from server.kit.http import filters
from server.kit.http.errors import FilterInvalid, OrderInvalid
from server.kit.http.filters import EQUALITY, Field, parse_filter, parse_order
from server.kit.listing import Condition, Operator, Order

FIELDS = {
    "state": Field(filters.choice(RunState), EQUALITY),
    "tag": Field(filters.word, EQUALITY),
    "step": Field(filters.integer),
    "created_at": Field(filters.time),
    "rated": Field(filters.flag, EQUALITY),
}


def test_conditions_are_joined_by_and() -> None:
    found = parse_filter('state = RUNNING AND tag != "nightly build" AND step>=10', FIELDS)

    assert found == (
        Condition("state", Operator.EQ, "RUNNING"),
        Condition("tag", Operator.NE, "nightly build"),
        Condition("step", Operator.GE, 10),
    )


def test_an_empty_filter_is_no_condition() -> None:
    assert parse_filter("  ", FIELDS) == ()


def test_times_are_read_as_seconds_whether_with_zone_or_without() -> None:
    texts = ["1970-01-02T00:00:00Z", "1970-01-02T00:00:00", "1970-01-02T01:00:00+01:00", "86400", "1970-01-02"]

    assert {parse_filter(f"created_at < {text}", FIELDS)[0].value for text in texts} == {86400.0}


def test_flags_are_true_or_false() -> None:
    assert [each.value for each in parse_filter("rated = true AND rated != false", FIELDS)] == [True, False]


def test_quoted_text_may_hold_quotes_and_backslashes() -> None:
    assert parse_filter(r'tag = "a\"b\\c"', FIELDS)[0].value == 'a"b\\c'


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        ("state RUNNING", 6, "operator"),
        ("state =", 7, "expected a value at the end"),
        ("stat = RUNNING", 0, "unknown field"),
        ("state = SLEEPING", 8, "one of CREATED"),
        ("state = RUNNING OR state = PAUSED", 16, "OR is not supported"),
        ("state = RUNNING state = PAUSED", 16, "expected AND"),
        ("state = RUNNING AND", 19, "expected a field"),
        ("state > RUNNING", 6, "= and != only"),
        ("step = many", 7, "a whole number"),
        ("created_at > soon", 13, "a time like"),
        ("rated = yes", 8, "true or false"),
        ('tag = "open', 6, "cannot read"),
        ("(state = RUNNING)", 0, "cannot read"),
        ("tag = 'open'", 6, "write a text in double quotes"),
    ],
)
def test_a_mistake_is_named_with_its_position(text: str, position: int, hint: str) -> None:
    with pytest.raises(FilterInvalid, match=hint) as caught:
        parse_filter(text, FIELDS)

    assert caught.value.position == position


@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        parse_filter(text, FIELDS)
    except FilterInvalid as error:
        assert 0 <= error.position <= len(text)  # noqa: PT017  # either outcome is right


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=30))
def test_any_printable_text_survives_quoting(text: str) -> None:
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    assert parse_filter(f"tag = {quoted}", FIELDS)[0].value == text


def test_an_order_is_a_field_and_a_direction() -> None:
    known = frozenset({"name", "step"})
    default = Order("step")

    assert parse_order("", known, default) == default
    assert parse_order("name", known, default) == Order("name", descending=False)
    assert parse_order("name desc", known, default) == Order("name", descending=True)
    for wrong in ("size", "name down", "name asc desc"):
        with pytest.raises(OrderInvalid, match="name, step"):
            parse_order(wrong, known, default)
