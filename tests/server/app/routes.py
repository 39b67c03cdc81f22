"""All routes of the application that need a token, and requests to them that get as far as their row."""

import re
from pathlib import Path
from typing import Any

import httpx2
from fastapi.routing import APIRoute

from server.app.access import is_open
from server.app.app import ROUTERS
from tests.server.app.world import CARTPOLE, World
from tests.server.checkpoints.test_uploads import SAC
from tests.server.demonstrations.recordings import recorded

ROUTES = [
    (method, route)
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in sorted(route.methods)
]
GUARDED = [(method, route) for method, route in ROUTES if not is_open({"path": route.path, "method": method})]
IDS = [f"{method} {route.path}" for method, route in GUARDED]
EMPTY = {
    "GET /v1/experiments/{experiment:name}/trials/{number}/config",
    "GET /v1/runs/{run:name}/recordings/{recording:name}/file",
    "GET /v1/runs/{run:name}/recordings/{recording:name}/frames",
    "GET /v1/runs/{run:name}/result",
    "GET /v1/webhooks/{webhook:name}/deliveries/{delivery:name}",
}
"""What the project of the test does not have."""
NOWHERE = {"attempt": "1", "number": "1", "version": "1", "token": "tok_0"}
"""Parameters of paths that 'nothing' is none for."""
BODIES: dict[str, Any] = {
    "PATCH /v1/runs/{run:name}": {"behaviors": {"CartPole": {"max_steps": 1000}}},
    "PATCH /v1/webhooks/{webhook:name}": {"enabled": False},
    "PUT /v1/aliases/{alias:name}": {"checkpoint_id": "ckpt_nobody"},
    "POST /v1/runs/{run:name}/checkpoints/{checkpoint:name}:score": {"metric": "reward", "value": 1.0},
    "PATCH /v1/runs/{run:name}/environment_parameters": {"parameters": {"mass": {"value": 1.0}}},
    "POST /v1/demonstrations/{demonstration:name}:subsample": {"count": 1},
    "PATCH /v1/experiments/{experiment:name}": {"parallelism": 2},
    "POST /v1/ladders/{ladder:name}/players": {"name": "p", "kind": "scripted"},
    "POST /v1/ladders/{ladder:name}/matches": {"participants": [{"player": "a"}, {"player": "b"}], "outcome": "win"},
}
"""What routes need in order to get as far as their row."""
EXPERIMENT = {
    "name": "our-experiment",
    "seed": 1,
    "config": CARTPOLE,
    "parameters": {"behaviors.CartPole.hyperparameters.num_epoch": {"min": 1, "max": 3}},
    "budget": {"runs": 3},
}
QUERIES: dict[str, dict[str, str]] = {
    "/v1/runs/{run:name}/metrics/series": {"key": "reward"},
    "/v1/configs/{name:name}:diff": {"old": "1", "new": "1"},
    "/v1/series": {"runs": "our-run", "keys": "reward"},
    "/v1/runs:compare": {"runs": "our-run"},
}
"""What some routes demand in their query."""


def token_of(world: World, scope: str, project: str = "default") -> dict[str, str]:
    """Make a token; return the headers that carry it."""
    answer = world.http.post("/v1/tokens", json={"name": f"{scope}er", "scopes": [scope], "project": project})
    assert answer.status_code == 201, answer.text
    return {"Authorization": f"Bearer {answer.json()['token']}"}


def filled(route: APIRoute, **values: str) -> str:
    """Return the path of a route with these values, or names that nothing has."""
    return re.sub(
        r"\{(\w+)(:\w+)?\}",
        lambda found: values.get(found[1], NOWHERE.get(found[1], "nothing")),
        route.path,
    )


def asked(world: World, method: str, route: APIRoute, headers: dict[str, str], **values: str) -> httpx2.Response:
    body = BODIES.get(f"{method} {route.path}", {}) if method in {"POST", "PATCH", "PUT"} else None
    parameters = QUERIES.get(route.path)
    if body is not None and route.path == "/v1/checkpoints":
        return world.http.request(method, filled(route, **values), headers=headers, content=b"x")
    with world.http.stream(method, filled(route, **values), headers=headers, json=body, params=parameters) as answer:
        if "event-stream" not in answer.headers.get("content-type", ""):
            answer.read()
        return answer


def one_of_everything(world: World, folder: Path) -> dict[str, str]:
    """Fill project `ours` with one of everything; return what its routes call them."""
    mine = {"Ludus-Project": "ours"}
    file = {**mine, "Content-Type": "application/octet-stream"}

    def made(path: str, **content: Any) -> dict[str, Any]:
        answer = world.http.post(path, **{"headers": mine, **content})
        assert answer.status_code in {201, 202}, answer.text
        return dict(answer.json())

    config = {"environment_parameters": {"mass": 1.0}, **CARTPOLE}
    run = made("/v1/runs", json={"config": config, "name": "our-run"})["id"]
    trainer = world.claim(run).start()
    trainer.measure("Environment/Cumulative Reward", [1.0])
    trainer.write_log("trainer.log", b"hello", folder)
    checkpoint = trainer.save(100, {"CartPole.onnx": b"model"}, folder)
    made("/v1/configs/our-config/versions", json={"config": CARTPOLE})
    made(f"/v1/runs/{run}:profile")
    alias = world.http.put("/v1/aliases/our-alias", headers=mine, json={"checkpoint_id": checkpoint})
    assert alias.is_success, alias.text
    return {
        "run": run,
        "attempt": "1",
        "checkpoint": checkpoint,
        "uploaded": made("/v1/checkpoints", headers=file, content=SAC.read_bytes())["id"],
        "demonstration": made("/v1/demonstrations", headers=file, content=recorded(folder))["id"],
        "experiment": made("/v1/experiments", json=EXPERIMENT)["id"],
        "ladder": made("/v1/ladders", json={"name": "our-ladder"})["id"],
        "name": "our-config",
        "version": "1",
        "number": str(made(f"/v1/runs/{run}:checkpoint")["seq"]),
        "alias": "our-alias",
        "webhook": made("/v1/webhooks", json={"url": "https://example.org/hook", "events": ["*"]})["id"],
        "token": made("/v1/tokens", json={"name": "our-token", "scopes": ["read"]})["id"],
    }


def names_in(route: APIRoute, ours: dict[str, str]) -> dict[str, str]:
    names = dict(ours)
    if route.path.startswith("/v1/checkpoints/"):
        names["checkpoint"] = ours["uploaded"]
    if route.path.endswith("/files/{name:path}"):
        names["name"] = "CartPole.onnx"
    if "/logs/{name}" in route.path:
        names["name"] = "trainer.log"
    return names
