"""The reader: YAML and JSON to plain values, and everything that it refuses."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.config.document import MAX_ALIASED, MAX_BYTES, MAX_DEPTH, MAX_VALUES, parse_document
from server.kit.errors import InvalidConfig, Problem

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(codec="ascii", exclude_characters="\x00"), max_size=5), inner, max_size=3
        )
    ),
    max_leaves=12,
)


def refusal_of(document: object) -> Problem:
    with pytest.raises(InvalidConfig) as caught:
        parse_document(document)  # type: ignore[arg-type]
    (problem,) = caught.value.problems
    return problem


@settings(deadline=None)
@given(
    st.dictionaries(st.text(st.characters(codec="ascii", exclude_characters="\x00"), max_size=5), VALUES, max_size=4)
)
def test_json_means_the_same_as_a_mapping(value: dict[str, object]) -> None:
    assert parse_document(json.dumps(value)) == parse_document(value) == value


def test_yaml_is_read_as_version_1_1() -> None:
    text = """
    text: 3e-4
    float: 3.0e-4
    whole: 12_000
    flag: yes
    nothing: ~
    date: 2024-01-31
    list: [1, "<<", <<]
    """

    assert parse_document(text) == {
        "text": "3e-4",
        "float": 0.0003,
        "whole": 12000,
        "flag": True,
        "nothing": None,
        "date": "2024-01-31",
        "list": [1, "<<", "<<"],
    }


def test_bytes_may_begin_with_a_byte_order_mark() -> None:
    assert parse_document(b"\xef\xbb\xbfa: 1") == parse_document("\ufeffa: 1") == {"a": 1}


def test_a_flow_mapping_that_is_no_json_is_read_as_yaml() -> None:
    assert parse_document("{a: 1, b: [x, y],}") == {"a": 1, "b": ["x", "y"]}


def test_plain_tags_are_understood() -> None:
    assert parse_document('!!map {a: !!str 1, b: !!int "2", c: ! 3}') == {"a": "1", "b": 2, "c": 3}


def test_a_tuple_in_a_mapping_becomes_a_list() -> None:
    assert parse_document({"a": (1, 2)}) == {"a": [1, 2]}


def test_what_is_returned_shares_nothing_with_what_was_given() -> None:
    given_value = {"a": {"b": [1]}}

    parsed = parse_document(given_value)
    parsed["a"]["b"].append(2)

    assert given_value == {"a": {"b": [1]}}


def test_aliases_stand_for_copies() -> None:
    parsed = parse_document("a: &x {b: 1}\nc: *x\n&key d: &y 5\ne: *y\nf: *key")

    assert parsed == {"a": {"b": 1}, "c": {"b": 1}, "d": 5, "e": 5, "f": "d"}
    assert parsed["a"] is not parsed["c"]


def test_merge_keys_lose_to_own_keys_and_to_earlier_ones() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {z: 3, <<: [*a, *b]}\nd: {<<: *b, <<: *a}"

    parsed = parse_document(text)

    assert parsed["c"] == {"x": 1, "y": 1, "z": 3}
    assert parsed["d"] == {"x": 1, "y": 2, "z": 2}


@pytest.mark.parametrize("document", ["", "# nothing", "---\n...", "null", b""])
def test_an_empty_document_is_refused(document: str | bytes) -> None:
    assert refusal_of(document).code == "empty_document"


@pytest.mark.parametrize("document", ["text", "[1, 2]", "7", '"{"'])
def test_a_document_that_is_no_mapping_is_refused(document: str) -> None:
    assert refusal_of(document).code == "not_a_mapping"


@pytest.mark.parametrize(
    ("document", "line", "column"),
    [
        ("a: [1, 2", 2, 1),
        ("a: 1\nb: c: d", 2, 5),
        ("a:\n\t- b", 2, 1),
        ("{'a': 1, 'b': }}", 1, 16),
        ("a: 1\n---\nb: 2", 2, 1),
        ("a: 1\nb: !!int x", 2, 4),
        ("a: !!bool x", 1, 4),
        ("a: !!int ''", 1, 4),
        ("a: 1\n<<: 3", 2, 1),
    ],
)
def test_invalid_yaml_is_refused_with_its_position(document: str, line: int, column: int) -> None:
    problem = refusal_of(document)

    assert (problem.code, problem.line, problem.column) == ("invalid_syntax", line, column)


def test_control_characters_are_refused() -> None:
    assert refusal_of("a\x07b: 1").code == "invalid_syntax"


@pytest.mark.parametrize(
    ("document", "path", "line", "column"),
    [("a: {b: 1, b: 2}", "a", 1, 11), ('{"a":\n {"b": 1, "b": 2}}', "a", 2, 11), ("a: 1\n'a': 2", "", 2, 1)],
)
def test_a_duplicate_key_is_refused_where_it_stands_again(document: str, path: str, line: int, column: int) -> None:
    problem = refusal_of(document)

    assert (problem.code, problem.path, problem.line, problem.column) == ("duplicate_key", path, line, column)


@pytest.mark.parametrize(
    "document", ["1: a", "a: {yes: 1}", "~: 1", "2024-01-31: {1.5: x}", "? [a]\n: 1", {"a": {1: 2}}]
)
def test_a_key_that_is_not_text_is_refused(document: object) -> None:
    assert refusal_of(document).code == "key_not_text"


@pytest.mark.parametrize("document", ["a: {b: [1, .nan]}", "a: {b: [1, -.inf]}", '{"a": {"b": [1, NaN]}}'])
def test_nan_and_infinity_are_refused_with_their_path(document: str) -> None:
    problem = refusal_of(document)

    assert (problem.code, problem.path) == ("not_finite", "a.b[1]")


def test_a_json_number_beyond_the_largest_float_is_refused() -> None:
    assert refusal_of('{"a": 1e999}').code == "not_finite"


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_of_hundreds_of_digits_is_refused(digits: int) -> None:
    assert refusal_of('{"a": ' + "9" * digits + "}").code in {"out_of_range", "invalid_syntax"}


@pytest.mark.parametrize(
    "value", ["!!python/object/apply:os.system [ls]", "!thing {b: 1}", "!!binary aGk=", "!!set {x}", "!<tag:x,1:y> z"]
)
def test_tags_are_refused(value: str) -> None:
    problem = refusal_of(f"a: {value}")

    assert (problem.code, problem.path) == ("tag_refused", "a")


@pytest.mark.parametrize(
    "document",
    ["a: &x [*x]", "a: &x {b: *x}", "a: *nowhere", "a: &x [&y [*x], *y]"],
    ids=["list", "map", "none", "both"],
)
def test_aliases_that_point_nowhere_or_at_themselves_are_refused(document: str) -> None:
    assert refusal_of(document).code == "alias_refused"


def test_aliases_that_multiply_are_refused_before_they_are_expanded() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]

    problem = refusal_of("\n".join(levels))

    assert problem.code == "alias_refused"
    assert str(MAX_ALIASED) in problem.message


def test_aliases_of_a_long_text_are_refused() -> None:
    document = f"a: &a {'x' * 500_000}\nb: [*a, *a, *a]"

    assert refusal_of(document).code == "too_large"


@pytest.mark.parametrize("depth", [MAX_DEPTH, 200_000])
@pytest.mark.parametrize("form", ['{{"a": {0}{1}}}', "a: {0}{1}"], ids=["json", "yaml"])
def test_deep_nesting_is_refused(depth: int, form: str) -> None:
    assert refusal_of(form.format("[" * depth, "]" * depth)).code == "too_deep"


def test_nesting_up_to_the_limit_is_read() -> None:
    depth = MAX_DEPTH - 1

    assert parse_document("a: " + "[" * depth + "]" * depth) == json.loads('{"a": ' + "[" * depth + "]" * depth + "}")


def test_a_mapping_that_contains_itself_is_refused() -> None:
    endless: dict[str, object] = {}
    endless["a"] = endless

    assert refusal_of(endless).code == "too_deep"


@pytest.mark.parametrize("document", ["a: " + "x" * 10_000_000, b"\xff" * 10_000_000, "ä" * (MAX_BYTES // 2 + 1)])
def test_a_document_above_a_mebibyte_is_refused_unread(document: str | bytes) -> None:
    assert refusal_of(document).code == "too_large"


def test_too_many_values_are_refused() -> None:
    assert refusal_of({"a": [0] * MAX_VALUES}).code == "too_large"


@pytest.mark.parametrize("document", [b"a: \xff", "a: \udc80", '{"a": "\\ud800"}', 'a: "\\0"', {"a\x00": 1}])
def test_text_that_cannot_be_stored_is_refused(document: object) -> None:
    assert refusal_of(document).code == "invalid_encoding"


def test_a_value_of_no_plain_type_is_refused() -> None:
    problem = refusal_of({"a": {"b": object()}})

    assert (problem.code, problem.path) == ("wrong_type", "a.b")


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidConfig):
        parse_document(text)
