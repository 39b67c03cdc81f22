"""Mistakes in requests are said in our words, whatever is wrong and wherever: over all bodies and parameters."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi._compat import ModelField
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel, ValidationError

from ludus.names import NAME_RULE, TAG_RULE
from ludus.validation import ANY_OTHER, in_words, place
from server.kit.http.fields import Write
from tests.ludus.test_validation import THEIRS
from tests.server.app.routes import ROUTES
from tests.server.app.world import CARTPOLE, World

WRONG: list[Any] = [
    None,
    "",
    " ",
    "x" * 3000,
    "a\0b",
    "-rf",
    b"\xff",
    "9" * 5000,
    "1.5",
    True,
    -1,
    -1.5,
    0,
    1.5,
    2**40,
    2**70,
    1e300,
    float("nan"),
    float("inf"),
    [],
    [None] * 1001,
    [""],
    ["a b"],
    [[]],
    {},
    {"": None},
    {1: 2},
    {"name": {"value": None}},
    object(),
]


def bodies(model: type[BaseModel] = Write) -> Iterator[type[BaseModel]]:
    for each in model.__subclasses__():
        if each.__module__.startswith("server."):
            yield each
            yield from bodies(each)


BODIES = sorted(set(bodies()), key=lambda model: model.__qualname__)


def mistakes(model: type[BaseModel]) -> Iterator[dict[str, Any]]:
    """Yield pydantic's errors for wrong values of each field, of the whole body, and for an unknown field."""
    attempts: list[Any] = [*WRONG, {"unknown": 1}]
    attempts += [{name: value} for name in model.model_fields for value in [*WRONG, [{}], [{"unknown": 1}]]]
    for attempt in attempts:
        try:
            model.model_validate(attempt)
        except ValidationError as error:
            yield from error.errors(include_url=False)  # type: ignore[misc]  # typed dictionaries


def check(error: dict[str, Any]) -> None:
    message = in_words(error)
    assert message != ANY_OTHER
    assert not THEIRS.search(message), message
    assert not [part for part in place(error["loc"]) if re.search(r"[\[\](){}]|^(str|int)$", part)]


@pytest.mark.parametrize("model", BODIES, ids=lambda model: model.__qualname__)
def test_every_mistake_in_a_body_is_said_in_our_words(model: type[BaseModel]) -> None:
    found = list(mistakes(model))

    assert {error["type"] for error in found} >= {"model_type", "extra_forbidden"}
    for error in found:
        check(error)


def fields_of(dependant: Dependant) -> Iterator[ModelField]:
    yield from (*dependant.path_params, *dependant.query_params, *dependant.header_params)
    for each in dependant.dependencies:
        yield from fields_of(each)


def parameters() -> Iterator[tuple[str, ModelField]]:
    for method, route in ROUTES:
        for field in fields_of(route.dependant):
            yield f"{method} {route.path} {field.alias}", field


PARAMETERS = dict(parameters())


def test_every_mistake_in_a_parameter_is_said_in_our_words() -> None:
    assert len(PARAMETERS) > 250
    for name, field in PARAMETERS.items():
        found = [error for value in WRONG for error in field.validate(value, {}, loc=("query", name))[1]]
        assert found, f"{name} takes anything"
        for error in found:
            check({**error, "loc": error["loc"][2:]})


@pytest.mark.parametrize(
    ("path", "body", "rule"),
    [
        ("/v1/runs", {"config": CARTPOLE, "name": "katze 猫"}, NAME_RULE),
        ("/v1/runs", {"config": CARTPOLE, "tags": ["night*"]}, TAG_RULE),
        ("/v1/ladders", {"name": "a/b"}, NAME_RULE),
        ("/v1/tokens", {"name": "", "scopes": ["read"]}, NAME_RULE),
        ("/v1/webhooks", {"url": "https://example.org", "run": "my run"}, NAME_RULE),
        ("/v1/ladders/open/players", {"name": "the cat", "kind": "human"}, NAME_RULE),
        ("/v1/configs/my%20config/versions", {"config": CARTPOLE}, NAME_RULE),
    ],
)
def test_one_rule_for_names_is_said_everywhere(world: World, path: str, body: dict[str, Any], rule: str) -> None:
    answer = world.http.post(path, json=body)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert rule in answer.json()["errors"][0]["message"]
    assert "^[" not in answer.text


@pytest.mark.parametrize("name", ["Jäger", "猫", "नमस्ते", "new_0.1"])
def test_a_name_of_any_alphabet_finds_its_run_again(world: World, name: str) -> None:
    tags = [f"dataset:{name}/apart", "a,b", "🚀", "key:value"]
    made = world.create(name=name, tags=tags)

    assert (made["name"], made["tags"]) == (name, sorted(tags))
    assert world.http.get(f"/v1/runs/{name}").json()["id"] == made["id"]
    for tag in tags:
        wanted = f'tags = {json.dumps(tag, ensure_ascii=False)} AND name = "{name}"'
        listed = world.http.get("/v1/runs", params={"filter": wanted}).json()
        assert [run["id"] for run in listed["runs"]] == [made["id"]]
