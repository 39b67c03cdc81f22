"""Whatever stands in a path, query, header, body, filter or page token: the answer is never a 500, and a number out of
range is refused with a sentence that says where it stands and what would be in range.
"""

import json
import random
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx2
import pytest

from server.app.app import ROUTERS
from server.kit.http.filters import Field, flag, integer, time
from server.kit.http.listing import ListForm, encode_token
from server.kit.listing import Operator
from tests.conftest import POSTGRES_URL, POSTGRESQL_ONLY, postgresql_database
from tests.examples import examples
from tests.server.app.test_openapi import GOLDEN, NAMES, populate
from tests.server.app.world import CARTPOLE, World

Value = TypeVar("Value")

DESCRIPTION: Final = json.loads(GOLDEN.read_text())
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, item in DESCRIPTION["paths"].items()
    for method, operation in item.items()
}

OUT_OF_ANY_RANGE = ("9223372036854775808", "-9223372036854775809", "1" + 400 * "0")
"""Integers that no column holds."""
NUMBERS = [
    *(*OUT_OF_ANY_RANGE, "2147483648", "-2147483649", "-1"),
    *("1e308", "1e400", "-1e400", "NaN", "Infinity", "-Infinity", "0.5"),
]
"""As they stand in JSON, which Python reads without a word, and in addresses."""
TEXTS = ["\x00", "a\x00b", "x" * 10_000, "\U0010ffff", "9" * 400, "' OR 1=1 --", "../../x"]
HALF_A_CHARACTER = "\ud800"
EXISTING: dict[str, str] = {}
"""Values of path parameters beside `NAMES`, filled in with the world."""
BASES: dict[str, Any] = {
    "POST /v1/runs": {
        "config": {**CARTPOLE, "seed": 1, "environment_parameters": {"mass": 1.0}},
        "overrides": {"behaviors.CartPole.time_horizon": 128},
        "name": "n",
        "tags": ["t"],
        "priority": 1,
        "owner": "o",
        "validate_only": False,
    },
    "POST /ui/session": {"token": "t", "project": "p"},
    "POST /v1/configs/{name}/versions": {"config": {**CARTPOLE, "seed": 1}, "description": "d"},
    "POST /v1/configs:upgrade": {"config": "behaviors: {}", "curriculum": {"a": "x"}, "sampler": "s"},
    "PATCH /v1/runs/{run}": {"behaviors": {"CartPole": {"max_steps": 1000, "hyperparameters": {"beta": 0.1}}}},
    "POST /v1/runs/{run}:resume": {"behaviors": {"CartPole": {"max_steps": 1000}}},
    "POST /v1/runs/{run}:profile": {"seconds": 1},
    "PATCH /v1/runs/{run}/environment_parameters": {"parameters": {"mass": {"value": 1.0, "lesson": 1}}},
    "POST /v1/runs/{run}/checkpoints/{checkpoint}:score": {"metric": "m", "value": 1.0},
    "POST /v1/runs/{run}/simulator_tokens": {"name": "n", "expires_in_seconds": 60.0},
    "POST /v1/tokens": {
        "name": "n",
        "scopes": ["simulate"],
        "project": "default",
        "run": "finished",
        "expires_in_seconds": 60.0,
    },
    "POST /v1/checkpoints:prune": {"older_than_seconds": 1e9, "max_bytes": 10**12, "dry_run": True},
    "PUT /v1/aliases/{alias}": {"checkpoint_id": "ckpt_x", "expected": "ckpt_y"},
    "POST /v1/demonstrations:merge": {"demonstrations": ["DEMONSTRATION", "DEMONSTRATION"], "name": "n"},
    "POST /v1/demonstrations/{demonstration}:subsample": {"count": 1, "seed": 1, "name": "n"},
    "POST /v1/experiments": {
        "name": "n",
        "description": "d",
        "config_name": "base",
        "config_version": 1,
        "parameters": {"seeds": {"min": 1.0, "max": 2.0, "step": 0.5}},
        "seeds": 1,
        "seed": 1,
        "objective": {"metric": "m", "behavior": "b", "last": 1},
        "early_stopping": {"min_steps": 1, "max_steps": 2, "reduction_factor": 3},
        "budget": {"runs": 1, "steps": 1, "gpu_hours": 1.0, "hours": 1.0},
        "parallelism": 1,
    },
    "PATCH /v1/experiments/{experiment}": {"description": "d", "budget": {"runs": 1}, "parallelism": 1},
    "POST /v1/experiments/{experiment}:retry": {"trials": [0]},
    "POST /v1/ladders": {"name": "n", "description": "d", "initial_elo": 1200.0},
    "POST /v1/ladders/{ladder}/players": {
        "name": "n",
        "kind": "checkpoint",
        "checkpoint_id": "ckpt_" + "0" * 26,
        "behavior": "b",
        "elo": 1.0,
        "mu": 1.0,
        "sigma": 1.0,
        "fixed": False,
    },
    "POST /v1/ladders/{ladder}/matches": {
        "participants": [{"player": 1, "team": 0, "score": 1.0}, {"player": 2, "team": 1, "score": 1.0}],
        "at": "2026-01-01T00:00:00Z",
        "truncated": False,
    },
    "POST /v1/webhooks": {
        "url": "https://example.org/hook",
        "events": ["*"],
        "description": "d",
        "run": "finished",
        "tag": "t",
    },
    "PATCH /v1/webhooks/{webhook}": {"description": "d", "events": ["*"], "run": "finished", "tag": "t"},
    "POST /v1/webhooks/{webhook}:rotate": {"overlap_seconds": 1.0},
}
"""Bodies of which each value in turn is replaced."""
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}
"""Requests of the server's own pages have it, and browsers sign in from those alone."""
FILES = {"POST /v1/checkpoints", "POST /v1/demonstrations"}
"""Their bodies are files."""
REQUIRED = {"key": "reward", "keys": "reward", "runs": "finished", "old": "1", "new": "1"}
LENIENT = re.compile(r"above \d+(, the default,)? it is lowered|at most \d+\.")
"""Of descriptions: a number that is too large is lowered."""


@pytest.fixture(scope="module", params=["sqlite", *(POSTGRESQL_ONLY if POSTGRES_URL else [])])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Serve something of everything, on either database."""
    home = tmp_path_factory.mktemp("range")
    with ExitStack() as stack:
        url = None
        if request.param != "sqlite":
            url = stack.enter_context(postgresql_database()).render_as_string(hide_password=False)
        world = stack.enter_context(populate(home, url))
        hook = world.http.post("/v1/webhooks", json={"url": "https://example.org/hook", "events": ["*"]})
        EXISTING["webhook"] = hook.json()["id"]
        checkpoint = world.http.get("/v1/runs/finished/checkpoints/latest").json()["id"]
        world.http.put("/v1/aliases/champion", json={"checkpoint_id": checkpoint}).raise_for_status()
        EXISTING["alias"] = "champion"
        world.http.post("/v1/runs", json={"config": CARTPOLE, "name": "open"}).raise_for_status()
        yield world


def path_of(route: str, **values: str) -> str:
    """Fill a path with what there is, or with these values, quoted before."""
    there = {name: str(found[0]) for name, found in NAMES.items()} | EXISTING
    if route == "PATCH /v1/runs/{run}":
        there["run"] = "open"  # what has ended is refused for that alone
    if "/logs/" in route or "/files/" in route:
        there["name"] = "trainer.log" if "/logs/" in route else "CartPole.onnx"
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], there.get(found[1], "1")), route.partition(" ")[2])


def ask(world: World, route: str, path: str | None = None, **content: Any) -> httpx2.Response:
    """Send a request; of an endless answer only the head is read."""
    method = route.partition(" ")[0]
    required = {name: value for name, value in REQUIRED.items() if name in names_of(route, "query")}
    if path is None or "?" not in path:  # httpx2 would replace the query of a path
        content["params"] = {**required, **content.get("params", {})}
    if "content" not in content and method in {"POST", "PUT", "PATCH"}:
        if route in FILES:
            content["content"], kind = b"x", "application/octet-stream"
        else:
            content["content"], kind = json.dumps(BASES.get(route, {})), "application/json"
        content["headers"] = {"Content-Type": kind, **OWN_PAGE, **content.get("headers", {})}
    with world.http.stream(method, path or path_of(route), **content) as answer:
        if "event-stream" not in answer.headers.get("content-type", ""):
            answer.read()
        return answer


def names_of(route: str, place: str) -> list[str]:
    return [each["name"] for each in OPERATIONS[route].get("parameters", []) if each["in"] == place]


def sentence_of(answer: httpx2.Response) -> str:
    """Return all that a problem says; other answers say nothing, and a defect is none."""
    assert answer.status_code < 500, f"{answer.request.method} {answer.request.url}: {answer.text}"
    if answer.status_code < 400:
        return ""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    items = [f"{each['location']} {each['path']}: {each['message']}" for each in problem["errors"]]
    said = " ".join([problem["detail"], *items])
    assert len(said) > 10
    return said


def schema_of(route: str, name: str) -> str:
    """Return the schema of a parameter, as text."""
    return json.dumps([each["schema"] for each in OPERATIONS[route]["parameters"] if each["name"] == name])


def first_of_each_kind(kinds: Iterable[tuple[Hashable, Hashable]]) -> set[Hashable]:
    """Take pairs of something and its kind, and return the first of each kind: it is asked with every value.

    The others of its kind go the same way to the same checks, and are asked with few values.
    """
    found: dict[Hashable, Hashable] = {}
    for each, kind in kinds:
        found.setdefault(kind, each)
    return set(found.values())


def some(values: Sequence[Value]) -> list[Value]:
    """Return all values in `make test-all`; in `make test` the first, and some others that pytest-randomly draws."""
    return [values[0], *random.sample(values[1:], examples(len(values)) - 1)]


PARAMETERS = first_of_each_kind(
    ((route, each["in"], each["name"]), (each["in"], each["name"], schema_of(route, each["name"])))
    for route, operation in OPERATIONS.items()
    for each in operation.get("parameters", [])
)


@pytest.mark.long
@pytest.mark.parametrize("route", OPERATIONS)
def test_no_parameter_makes_a_route_fail(world: World, route: str) -> None:
    texts = [quote(text[:8000], safe="") for text in TEXTS]
    for name in names_of(route, "path"):
        thorough = (route, "path", name) in PARAMETERS
        for value in some(["%ff%fe", *texts, *OUT_OF_ANY_RANGE] if thorough else ["%00", OUT_OF_ANY_RANGE[0]]):
            sentence_of(ask(world, route, path_of(route, **{name: value})))
    queries = names_of(route, "query")
    for name in queries:
        whole = '"integer"' in schema_of(route, name)
        others = "".join(f"&{each}={REQUIRED[each]}" for each in REQUIRED if each != name and each in queries)
        thorough = (route, "query", name) in PARAMETERS
        every = [*(NUMBERS if whole else texts), "1e400", "%ff%fe", "%00"]
        for value in some(every) if thorough else [OUT_OF_ANY_RANGE[0] if whole else "%00"]:
            said = sentence_of(ask(world, route, f"{path_of(route)}?{name}={value}{others}"))
            if whole and value in OUT_OF_ANY_RANGE and not LENIENT.search(schema_of(route, name)):
                assert re.search(rf"query {name}\b.*\d", said), (name, value, said)
    for name in names_of(route, "header"):
        thorough = (route, "header", name) in PARAMETERS
        every_header = [b"\xff", b"x" * 2000, b"9223372036854775808", b"bytes=9223372036854775808-", b"-1", b"NaN"]
        for text in some(every_header) if thorough else [b"\xff"]:
            sentence_of(ask(world, route, headers={name: text}))  # type: ignore[dict-item]  # bytes as they are sent


def places(body: Any) -> Iterator[tuple[str | int, ...]]:
    """Iterate over the paths of all values in a body."""
    yield ()
    items = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in items:
        yield from ((key, *rest) for rest in places(value))


def with_value(body: Any, place: Sequence[str | int], value: str) -> str:
    """Return a body as JSON in which one value is replaced by this text."""
    if not place:
        return value
    parts = {
        key: with_value(each, place[1:], value) if key == place[0] else json.dumps(each)
        for key, each in (body.items() if isinstance(body, dict) else enumerate(body))
    }
    if isinstance(body, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in parts.items()) + "}"
    return "[" + ", ".join(parts.values()) + "]"


def value_at(body: Any, place: Sequence[str | int]) -> Any:
    """Return the value at a place of a body."""
    for key in place:
        body = body[key]
    return body


VALUES = first_of_each_kind(
    ((route, place), (place[-1:], type(value_at(base, place))))
    for route, base in BASES.items()
    for place in places(base)
)


@pytest.mark.parametrize("route", BASES)
def test_no_value_in_a_body_makes_a_route_fail(world: World, route: str) -> None:
    base = json.loads(json.dumps(BASES[route]).replace("DEMONSTRATION", str(NAMES["demonstration"][0])))
    for place in places(base):
        original = value_at(base, place)
        number = isinstance(original, int | float) and not isinstance(original, bool)
        thorough = (route, place) in VALUES
        texts = ([*TEXTS, HALF_A_CHARACTER] if thorough else [TEXTS[0]]) if isinstance(original, str) else []
        numbers = (NUMBERS if thorough else OUT_OF_ANY_RANGE) if number else OUT_OF_ANY_RANGE[-1:]
        for value in some([*numbers, *map(json.dumps, texts), "null", *(["[]", "{}"] if thorough else [])]):
            content = with_value(base, place, value)
            answer = ask(world, route, content=content, headers={"Content-Type": "application/json"})
            said = sentence_of(answer)
            if value in OUT_OF_ANY_RANGE and isinstance(original, int) and not isinstance(original, bool):
                assert answer.status_code >= 400, (place, value, answer.text)
                if answer.status_code == 422:  # not: the run has ended
                    assert re.search(rf"{place[-1]}\b.*\d", said), (place, value, said)


@pytest.mark.parametrize("route", ["POST /v1/runs", "POST /v1/configs/{name}/versions"])
@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "1e400", "0x" + "f" * 40, '"\\0"', "9" * 5000])
def test_no_number_in_a_yaml_configuration_makes_a_route_fail(world: World, route: str, value: str) -> None:
    for key in ("max_steps", "summary_freq"):
        content = f"behaviors:\n  CartPole:\n    trainer_type: ppo\n    {key}: {value}\n"
        assert sentence_of(ask(world, route, content=content, headers={"Content-Type": "application/yaml"}))


def forms() -> dict[str, ListForm]:
    """Return what each list can be asked for, by its route."""
    found = {}
    for router in ROUTERS:
        for route in router.routes:
            endpoint = getattr(route, "endpoint", None)
            asked = getattr(endpoint, "__code__", None)
            if asked is not None and "listing" in asked.co_varnames[: asked.co_argcount]:
                named = [getattr(endpoint, "__globals__", {}).get(name) for name in asked.co_names]
                (form,) = {each.name: each for each in named if isinstance(each, ListForm)}.values()
                found[f"GET {re.sub(r':[a-z]+}', '}', route.path)}"] = form  # type: ignore[attr-defined]
    return found


FORMS = forms()


def test_every_list_is_among_those_that_are_asked_wrongly() -> None:
    assert {route for route in OPERATIONS if "filter" in names_of(route, "query")} == FORMS.keys()


def literals(field: Field) -> list[str]:
    """Return values that a field's reader takes, far beyond what any column holds, and texts of all kinds."""
    if field.read in {integer, time}:
        return [*("2147483648", "-2147483649", "9223372036854775808"), "9" * 400, "-" + "9" * 400, "999999999999"]
    if field.read is flag:
        return ["true", "false"]
    return ['"\U0010ffff"', '"%"', '"*"', f'"{"x" * 1500}"', '""', '"9223372036854775808"']


FIELDS = first_of_each_kind(
    ((route, name), (field.read, field.operators))
    for route, form in FORMS.items()
    for name, field in form.filters.items()
)


@pytest.mark.parametrize("route", FORMS)
def test_no_filter_makes_a_list_fail_and_numbers_out_of_range_are_refused_with_the_range(
    world: World, route: str
) -> None:
    for name, field in FORMS[route].filters.items():
        values = literals(field)
        # Values are checked before the operator matters; what a comparison by size does to them, two of them show.
        asked = [(Operator.EQ, value) for value in values] + [(Operator.LT, value) for value in values[2:4]]
        if (route, name) not in FIELDS:  # the column beneath is another one: the numbers that it cannot hold are asked
            numeric = field.read in {integer, time}
            asked = [(Operator.EQ, values[2]), (Operator.LT, values[0])] if numeric else asked[:1]
        for operator, value in asked:
            if operator not in field.operators:
                continue
            said = sentence_of(ask(world, route, params={"filter": f"{name} {operator} {value}"}))
            if field.read is integer and abs(int(value)) >= 2**63:
                assert name in said, said
                assert re.search(r"whole numbers from -\d+ to \d+", said), said


@pytest.mark.parametrize("route", FORMS)
def test_no_forged_page_token_makes_a_list_fail(world: World, route: str) -> None:
    form = FORMS[route]
    hostile: list[Any] = [2**31, 2**63, -(2**63) - 1, 10**400, 1e308, float("nan"), "\x00", "\ud800", None, True, ""]
    few: list[Any] = [2**63, 10**400, float("nan"), "\x00", None]
    for order in form.orders:
        query = json.dumps([form.name, "", [order]])
        thorough = order == form.orders[0]
        # The second value is the key, which is the same in every order: with one text or number before it, it is read.
        keysets = [[value, "x"] for value in (hostile if thorough else few)]
        if thorough:
            keysets += [[valid, value] for value in few for valid in ("x", 1)]
        for keyset in some(keysets):
            sentence_of(ask(world, route, params={"order_by": order, "page_token": encode_token(keyset, query)}))


def test_a_status_beyond_the_column_is_refused_with_a_sentence(world: World) -> None:
    answer = ask(world, "GET /v1/audit", params={"filter": "status = 999999999999"})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_query")
    assert answer.json()["detail"] == (
        "The query cannot use 'status': it takes whole numbers from -2147483648 to 2147483647, and 999999999999 "
        "is none of them."
    )


def test_the_tables_have_every_route_with_a_body() -> None:
    bodies = {route for route, operation in OPERATIONS.items() if "requestBody" in operation}

    assert bodies - FILES == BASES.keys()
