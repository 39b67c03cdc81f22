"""Bodies of JSON that are made to cost: every route that takes a body refuses them soon, with a short answer."""

import json
import time

import pytest

from server.kit.http.bodies import MAX_DEPTH, MAX_VALUES
from tests.server.app.test_out_of_range import BASES, OPERATIONS, OWN_PAGE
from tests.server.app.world import World

JSON = {"Content-Type": "application/json", **OWN_PAGE}
TAKE_JSON = sorted(
    name
    for name, operation in OPERATIONS.items()
    if "application/json" in operation.get("requestBody", {}).get("content", {})
)
SECONDS = 10.0
BODIES = {
    "values": "[" + "1," * 1_000_000 + "1]",
    "lists": '{"a": [' + "[]," * 600_000 + "[]]}",
    "objects": '{"a": [' + "{}," * 600_000 + "{}]}",
    "levels": '{"a": ' * 300_000,
    "levels just beyond": "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    "quotes without an end": '{"a": "' + '\\"' * 1_000_000,
    "keys": "{" + ",".join(f'"k{number}":1' for number in range(MAX_VALUES)) + "}",
    "a text": json.dumps({"name": "x" * 2_000_000}),
    "digits": '{"name": ' + "9" * 2_000_000 + "}",
}


def test_every_route_with_a_body_is_known() -> None:
    assert len(TAKE_JSON) > 15
    assert set(BASES) <= set(TAKE_JSON)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_no_body_costs_more_than_its_limits_allow(world: World, body: str) -> None:
    began = time.process_time()

    answer = world.http.post("/v1/runs", content=body, headers=JSON)

    assert 400 <= answer.status_code < 500, answer.text[:500]
    assert len(answer.content) < 50_000
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize("body", ["[" * (MAX_DEPTH + 1), "[" + "1," * MAX_VALUES + "1]"], ids=["levels", "values"])
@pytest.mark.parametrize("operation", TAKE_JSON)
def test_every_route_refuses_a_body_beyond_the_limits(world: World, operation: str, body: str) -> None:
    method, path = operation.split(" ")

    answer = world.http.request(method, path.replace("{", "").replace("}", ""), content=body, headers=JSON)

    assert answer.status_code == 400, answer.text[:500]
    assert "The body cannot be read: it has more than" in answer.json()["detail"]


def test_a_number_that_is_too_long_is_said_to_be(world: World) -> None:
    answer = world.http.post("/v1/runs", content=BODIES["digits"], headers=JSON)

    assert answer.json()["detail"] == "The body cannot be read: a number in it has more than 4300 digits."


@pytest.mark.parametrize("key", ["tags", "overrides", "config", "name"])
def test_a_list_of_as_many_mistakes_as_a_body_can_have_gets_a_short_answer(world: World, key: str) -> None:
    body = json.dumps({"config": {"behaviors": {"b": {}}}, key: [1] * (MAX_VALUES - 10)})

    answer = world.http.post("/v1/runs", content=body, headers=JSON)

    assert answer.status_code == 422
    assert len(answer.content) < 50_000
