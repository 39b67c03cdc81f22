"""Documents that are made to cost time: each is refused, or read, within a time that does not grow with its kind."""

import time
from contextlib import suppress

import pytest

from server.config.document import MAX_VALUES, located, parse_document
from server.config.resolution import apply_overrides, review
from server.kit.errors import InvalidConfig
from server.runs.stored_configs.service import upgrade_config

SECONDS = 10.0
"""Of the processor. The slowest of these documents takes a fifth of it; without limits some took 14 to 38 s."""

DOCUMENTS = {
    "a list of values": "a: [" + "1," * 520_000 + "]",
    "a list instead of a mapping": "[" + "1," * 520_000 + "]",
    "a list of JSON": '{"a": [' + "1," * 520_000 + "1]}",
    "lists of JSON without an end": '{"a": ' + "[[]," * 250_000,
    "texts": 'a: ["' + '","'.join(["x"] * 250_000) + '"]',
    "unknown keys": "".join(f"k{n}: 1\n" for n in range(90_000)),
    "unknown keys of a list, below the limit": "behaviors: {b: {x: [" + "1," * (MAX_VALUES - 10) + "]}}",
    "behaviors": "behaviors:\n" + "".join(f" k{n}: {{}}\n" for n in range(45_000)),
    "behaviors that inherit much": "default_settings: {behavioral_cloning: {demonstrations: ["
    + "x," * 300
    + "]}}\nbehaviors:\n"
    + "".join(f" k{n}: {{}}\n" for n in range(250)),
    "parameters": "behaviors: {b: {}}\nenvironment_parameters:\n" + "".join(f" p{n}: 1\n" for n in range(45_000)),
    "unknown keys of an old behavior": "A:\n trainer: ppo\n" + "".join(f" k{n}: 1\n" for n in range(40_000)),
    "keys of a behavior that stand twice": "behaviors:\n A:\n" + "".join(f"  k{n}: 1\n" * 2 for n in range(20_000)),
    "keys that stand twice": "{" + ",".join(['"k":1'] * 170_000) + "}",
    "levels": "[" * 500_000,
    "levels of JSON": '{"a":' * 200_000,
    "quotes without an end": '{"a": "' + '\\"' * 500_000,
    "tag directives": "".join(f"%TAG !e{n}! tag:x\n" for n in range(50_000)) + "---\na: 1",
    "tags": "a: [" + "!!str 1," * 100_000 + "]",
    "anchors": "a: [" + "&a 1," * 200_000 + "]",
    "aliases": "x: &x 1\na: [" + "*x," * 250_000 + "]",
    "aliases of merges": "x: &x {" + ",".join(f"k{n}: 1" for n in range(9000)) + "}\n" + "a: {<<: *x}\n" * 100,
    "base 60": "a: 1" + ":59" * 300_000,
    "base 60 with a fraction": "a: 1" + ":59" * 300_000 + ".5",
    "base 60 beyond any float": "a: 1" + ":59" * 300 + ".5",
    "digits": "a: " + "9" * 1_000_000,
    "digits of base 16": "a: 0x" + "f" * 1_000_000,
    "digits of a fraction": "a: 0." + "9" * 1_000_000,
    "empty lines": "\n" * 1_000_000 + "a: 1",
    "comments": "#\n" * 500_000 + "a: 1",
    "a folded text": "a: >\n" + " x\n" * 300_000,
    "question marks": "? " * 500_000,
    "dashes": "- " * 500_000,
    "documents": "---\na: 1\n" * 80_000,
}


READ_BY_UPGRADE = [
    "unknown keys of a list, below the limit",
    "behaviors",
    "behaviors that inherit much",
    "parameters",
    "unknown keys of an old behavior",
    "keys of a behavior that stand twice",
]
"""Those that the reader of old documents takes; it refuses the others where `parse_document` does."""


@pytest.mark.long
@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_no_document_costs_more_than_its_limits_allow(document: str) -> None:
    began = time.thread_time()

    with suppress(InvalidConfig), located(document):
        review(apply_overrides(parse_document(document), {"priority": 1}))

    assert time.thread_time() - began < SECONDS


@pytest.mark.long
@pytest.mark.parametrize("kind", READ_BY_UPGRADE)
def test_no_document_that_is_upgraded_costs_more_than_its_limits_allow(kind: str) -> None:
    began = time.thread_time()

    upgrade_config(DOCUMENTS[kind], None, None)

    assert time.thread_time() - began < SECONDS


@pytest.mark.parametrize(("begin", "end"), [("a: [", "]"), ('{"a": [', "1]}"), ("{a: [", "]}")])
def test_a_document_of_too_many_values_is_refused_where_the_limit_is_reached(begin: str, end: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_document(begin + "1," * (2 * MAX_VALUES) + end)

    (problem,) = refused.value.problems
    assert problem.code == "too_large"
    assert problem.line == 1
    assert problem.column == pytest.approx(2 * MAX_VALUES, abs=10)


@pytest.mark.parametrize(("begin", "end"), [("a: [", "]"), ('{"a": [', "1]}")])
def test_a_document_with_as_many_values_as_allowed_is_read(begin: str, end: str) -> None:
    many = MAX_VALUES - (1 if end == "]" else 2)

    assert parse_document(begin + "1," * many + end)["a"][-1] == 1


@pytest.mark.parametrize(
    "overrides",
    [
        {f"behaviors.b{n}.max_steps": 1 for n in range(20_000)},
        {f"behaviors.b{n}.max_steps": -1 for n in range(1000)},
        {"a." * 100_000 + "a": 1},
        {"behaviors": {f"b{n}": {} for n in range(40_000)}},
    ],
)
def test_no_overrides_cost_more_than_their_limits_allow(overrides: dict[str, object]) -> None:
    document = "behaviors: {" + ",".join(f"b{n}: {{q: 1}}" for n in range(200)) + "}"
    began = time.thread_time()

    with pytest.raises(InvalidConfig), located(document, overrides):
        review(apply_overrides(parse_document(document), overrides))

    assert time.thread_time() - began < SECONDS
