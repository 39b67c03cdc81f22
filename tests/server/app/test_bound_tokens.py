"""A token that is bound to a run or a ladder reads this one, in paths that have its id, and nothing else."""

import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from fastapi.routing import APIRoute

from ludus.client import Client
from ludus.schemas.tokens import Scope
from server.kit.http.auth import need_of
from tests.server.app.routes import EMPTY, GUARDED, IDS, QUERIES, asked, names_in, one_of_everything
from tests.server.app.world import CARTPOLE, World, build_services, serving
from tests.server.ladders.played import SELF_PLAY, make_match
from tests.waiting import eventually

MINE = {"Ludus-Project": "ours"}
NAMED_IN_QUERY = {"GET /v1/series", "GET /v1/runs:compare"}
"""Routes that name what they read in their query."""
KINDS = ["run", "ladder", "other run"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    services = build_services(tmp_path_factory.mktemp("bound"), api={"token": "boss", "requests_per_minute": 0})
    with (
        serving(services) as server,
        httpx2.Client(base_url=server, timeout=30, headers={"Authorization": "Bearer boss"}) as http,
    ):
        yield World(services, server, http)


def token(world: World, **body: Any) -> dict[str, Any]:
    answer = world.http.post("/v1/tokens", json={"name": "link", "scopes": ["read"], **body}, headers=MINE)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def bearer(token: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {token['token']}"}


@pytest.fixture(scope="module")
def ours(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return one_of_everything(world, tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def others(world: World, ours: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A second run with a checkpoint and a log, and a second ladder, in the same project."""
    folder = tmp_path_factory.mktemp("others")
    made = world.http.post("/v1/runs", json={"config": CARTPOLE, "name": "their-run"}, headers=MINE).json()
    trainer = world.claim(made["id"]).start()
    trainer.measure("Environment/Cumulative Reward", [2.0])
    trainer.write_log("trainer.log", b"secret", folder)
    checkpoint = trainer.save(200, {"CartPole.onnx": b"secret"}, folder)
    ladder = world.http.post("/v1/ladders", json={"name": "their-ladder"}, headers=MINE).json()
    return {**ours, "run": made["id"], "checkpoint": checkpoint, "ladder": ladder["id"]}


@pytest.fixture(scope="module")
def tokens(world: World, ours: dict[str, str], others: dict[str, str]) -> dict[str, dict[str, str]]:
    return {
        "run": bearer(token(world, run=ours["run"])),
        "ladder": bearer(token(world, ladder=ours["ladder"])),
        "other run": bearer(token(world, run=others["run"], scopes=["read", "simulate"])),
    }


def send(world: World, method: str, route: APIRoute, headers: dict[str, str], names: dict[str, str]) -> httpx2.Response:
    if f"{method} {route.path}" in NAMED_IN_QUERY:
        query = {**QUERIES[route.path], "runs": names["run"]}
        return world.http.get(route.path, params=query, headers=headers)
    return asked(world, method, route, headers, **names)


def code_of(answer: httpx2.Response) -> str:
    return str(answer.json()["code"]) if answer.headers.get("content-type") == "application/problem+json" else ""


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("method", "route"), GUARDED, ids=IDS)
def test_every_route_names_what_the_token_is_bound_to_or_refuses_it(
    world: World,
    ours: dict[str, str],
    others: dict[str, str],
    tokens: dict[str, dict[str, str]],
    method: str,
    route: APIRoute,
    kind: str,
) -> None:
    name = f"{method} {route.path}"
    need = need_of(route)
    parameter = "ladder" if kind == "ladder" else "run"
    own, foreign = (others, ours) if kind == "other run" else (ours, others)

    answer = send(world, method, route, tokens[kind], names_in(route, own))

    if need.scope is None:
        assert answer.is_success
    elif need.scope != Scope.READ or need.everywhere:
        assert (answer.status_code, code_of(answer)) == (403, "scope_missing")
    elif f"{{{parameter}:name}}" not in route.path and not (name in NAMED_IN_QUERY and parameter == "run"):
        assert (answer.status_code, code_of(answer)) == (403, "token_bound")
    else:
        assert name in EMPTY or answer.is_success or (kind == "other run" and answer.status_code == 404), answer.text
        if "event-stream" not in answer.headers.get("content-type", ""):
            assert foreign["run"] not in answer.text
        # The same route with any other name of anything is refused.
        for id_ in (foreign[parameter], f"{'our' if own is ours else 'their'}-{parameter}", "nothing"):
            other = send(world, method, route, tokens[kind], {**names_in(route, own), parameter: id_})
            assert (other.status_code, code_of(other)) == (403, "token_bound"), id_
        # What belongs to the other run is not found below the bound one.
        below = send(world, method, route, tokens[kind], {**names_in(route, foreign), parameter: own[parameter]})
        assert below.status_code in {200, 404}, below.text
        if "event-stream" not in below.headers.get("content-type", ""):
            assert ("secret" if own is ours else "hello") not in below.text
            assert foreign["run"] not in below.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_token_stays_in_its_project(world: World, ours: dict[str, str], tokens: Any, kind: str) -> None:
    for project in ("*", "default", "theirs"):
        answer = world.http.get(f"/v1/runs/{ours['run']}", headers={**tokens[kind], "Ludus-Project": project})
        assert (answer.status_code, code_of(answer)) == (403, "project_forbidden")
    body = {"name": "x", "scopes": ["read"], "project": "*"}
    for field in ("run", "ladder"):
        answer = world.http.post("/v1/tokens", json={**body, field: ours[field]}, headers=MINE)
        assert (answer.status_code, code_of(answer)) == (422, f"invalid_{field}_token")


@pytest.mark.parametrize(
    ("path", "field", "id_"), [("/v1/series", "series", "run_id"), ("/v1/runs:compare", "runs", "id")]
)
def test_series_and_comparisons_are_answered_where_all_runs_are_the_bound_one(
    world: World, ours: dict[str, str], others: dict[str, str], tokens: Any, path: str, field: str, id_: str
) -> None:
    def asked_for(*runs: str) -> httpx2.Response:
        keys = [("keys", "reward")] if path == "/v1/series" else []
        query = [*keys, *(("runs", run) for run in runs)]
        return world.http.get(path, params=query, headers=tokens["run"])

    own = asked_for(ours["run"], ours["run"])
    assert {each[id_] for each in own.json()[field]} == {ours["run"]}
    for runs in ((), ("our-run",), (others["run"],), (ours["run"], others["run"]), (ours["run"], "our-run")):
        assert code_of(asked_for(*runs)) == "token_bound", runs
    assert code_of(world.http.get("/v1/runs", params={"runs": ours["run"]}, headers=tokens["run"])) == "token_bound"
    assert code_of(world.http.get(path, params={"runs": ours["ladder"]}, headers=tokens["ladder"])) == "token_bound"


def test_a_token_of_a_run_reads_the_ladder_of_its_self_play_and_no_other(world: World, ours: dict[str, str]) -> None:
    run = world.http.post("/v1/runs", json={"config": SELF_PLAY, "name": "duel"}, headers=MINE).json()["id"]
    trainer = world.claim(run).start()
    trainer.ledger.matches.append([make_match(1, "win", 0)])
    bound = bearer(token(world, run=run))

    own = world.http.get(f"/v1/ladders/{run}/matches", headers=bound)

    assert [each["outcome"] for each in own.json()["matches"]] == ["win"]
    for other in (ours["ladder"], ours["run"], "duel"):
        assert code_of(world.http.get(f"/v1/ladders/{other}", headers=bound)) == "token_bound"


def raw(world: World, target: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """Send a request whose path stays as it is."""
    connection = http.client.HTTPConnection(urlsplit(world.server).netloc, timeout=30)
    connection.request("GET", target, headers=headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


@pytest.mark.parametrize("kind", ["run", "ladder"])
@pytest.mark.parametrize(
    "path",
    [
        "{own}%2F..%2F{other}",
        "{own}/../{other}",
        "{own}/%2e%2e/{other}",
        "{other}%00{own}",
        "{other}?run={own}&ladder={own}",
        "{other}#{own}",
        "{other};{own}",
        "{other}:{own}",
        "{own},{other}",
        "{own}%20",
        "%20{own}",
        "{OWN}",
        "{other}/../{own}",
        "/{other}",
        "",
        "%2A",
        "*",
    ],
)
def test_no_spelling_of_a_path_reaches_anything_else(
    world: World, ours: dict[str, str], others: dict[str, str], tokens: Any, path: str, kind: str
) -> None:
    own, other = ours[kind], others[kind]
    target = f"/v1/{kind}s/{path.format(own=own, other=other, OWN=own.upper())}"

    status, content = raw(world, target, tokens[kind])

    assert status in {400, 403, 404, 422}, content
    assert b'"config"' not in content
    assert b"created_at" not in content


def test_a_bound_token_is_told_what_it_is_for(world: World, ours: dict[str, str], tokens: Any) -> None:
    refused = world.http.get("/v1/runs", headers=tokens["run"]).json()

    assert ours["run"] in refused["detail"]
    own = world.http.get("/v1/tokens/self", headers=tokens["run"]).json()
    assert (own["run_id"], own["ladder_id"], own["scopes"], own["acts_in"]) == (ours["run"], None, ["read"], "ours")
    own = world.http.get("/v1/tokens/self", headers=tokens["ladder"]).json()
    assert (own["run_id"], own["ladder_id"]) == (None, ours["ladder"])
    assert world.http.get("/version", headers=tokens["run"]).status_code == 200


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"scopes": ["read", "run"], "run": "our-run"}, "invalid_run_token"),
        ({"scopes": ["admin"], "run": "our-run"}, "invalid_run_token"),
        ({"scopes": ["read", "simulate"], "ladder": "our-ladder"}, "invalid_ladder_token"),
        ({"scopes": ["simulate"], "ladder": "our-ladder"}, "invalid_ladder_token"),
        ({"scopes": ["read"], "ladder": "our-ladder", "run": "our-run"}, "invalid_ladder_token"),
        ({"scopes": ["read"], "run": "our-run", "project": "theirs"}, "invalid_run_token"),
        ({"scopes": ["read"], "ladder": "our-ladder", "project": "theirs"}, "invalid_ladder_token"),
        ({"scopes": ["read"], "run": "nothing"}, "run_not_found"),
        ({"scopes": ["read"], "ladder": "nothing"}, "ladder_not_found"),
    ],
)
def test_a_token_is_bound_to_something_of_its_project_for_reading(
    world: World, ours: dict[str, str], body: dict[str, Any], code: str
) -> None:
    answer = world.http.post("/v1/tokens", json={"name": "x", **body}, headers=MINE)

    assert code_of(answer) == code, answer.text


def test_a_bound_token_names_nothing_by_a_name_that_is_its_id(world: World, ours: dict[str, str]) -> None:
    """A ladder may be called like the id of another one; the id comes first."""
    made = world.http.post("/v1/ladders", json={"name": ours["ladder"]}, headers=MINE).json()
    bound = bearer(token(world, ladder=ours["ladder"]))

    assert made["id"] != ours["ladder"]
    assert world.http.get(f"/v1/ladders/{ours['ladder']}", headers=bound).json()["id"] == ours["ladder"]


@pytest.mark.long
def test_tokens_go_with_their_run_or_ladder(world: World) -> None:
    run = world.http.post("/v1/runs", json={"config": CARTPOLE}, headers=MINE).json()["id"]
    ladder = world.http.post("/v1/ladders", json={"name": "short-lived"}, headers=MINE).json()["id"]
    tokens = [token(world, run=run), token(world, ladder=ladder)]
    paths = [f"/v1/runs/{run}", f"/v1/ladders/{ladder}"]
    for each, path in zip(tokens, paths, strict=True):
        assert world.http.get(path, headers=bearer(each)).status_code == 200
    world.http.post(f"/v1/runs/{run}:cancel", headers=MINE).raise_for_status()

    for path in paths:
        assert world.http.delete(path, headers=MINE).status_code == 204, path

    for each in tokens:
        assert world.http.get(f"/v1/tokens/{each['id']}", headers=MINE).json()["code"] == "token_not_found"
        eventually(lambda each=each: world.http.get("/v1/tokens/self", headers=bearer(each)).status_code == 401)


def test_the_client_makes_and_lists_bound_tokens(world: World, ours: dict[str, str]) -> None:
    with Client(world.server, token="boss", project="ours") as client:
        of_run = client.tokens.create("a", ["read"], run="our-run", expires_in_seconds=60.0)
        of_ladder = client.tokens.create("b", ["read"], ladder="our-ladder")
        found = list(client.tokens.list(filter=f"ladder_id = {ours['ladder']}"))

    assert (of_run.run_id, of_run.ladder_id) == (ours["run"], None)
    assert (of_ladder.run_id, of_ladder.ladder_id) == (None, ours["ladder"])
    assert of_ladder.id in {each.id for each in found}
    assert of_run.id not in {each.id for each in found}


def test_every_route_below_runs_and_ladders_names_them_by_the_same_parameter() -> None:
    for _, route in GUARDED:
        for kind in ("run", "ladder"):
            if route.path.startswith(f"/v1/{kind}s/"):
                assert route.path.startswith(f"/v1/{kind}s/{{{kind}:name}}"), route.path
