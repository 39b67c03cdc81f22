"""No answer that a project gets depends on another project: the same requests are sent where another project has sent
them first, and where none has, and the answers must be alike.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server.app.app import ROUTERS
from tests.server.app.routes import EXPERIMENT
from tests.server.app.world import CARTPOLE, World, open_world
from tests.server.checkpoints.test_uploads import SAC
from tests.server.demonstrations.recordings import recorded
from tests.server.ladders.played import make_match, rate_all

CONFIG = {"environment_parameters": {"mass": 1.0}, "seed": 7, **CARTPOLE}
PLAYING = {"behaviors": {"CartPole": {"self_play": {"ladder": "league"}}}, "seed": 7}


Step = tuple[str, str, dict[str, Any]]

RUN = "/v1/runs/nightly"
NEXT = "/v1/runs/waiting"
TABLE: dict[str, list[Step]] = {
    "run": [
        ("GET", RUN, {}),
        ("GET", "/v1/runs", {"params": {"filter": 'name = "night*"'}}),
        ("GET", f"{RUN}/attempts", {}),
        ("GET", f"{RUN}/logs", {}),
        ("GET", f"{RUN}/attempts/1/logs/trainer.log", {}),
        ("GET", f"{RUN}/simulators", {}),
        ("GET", f"{RUN}/collectors", {}),
        ("GET", "/v1/simulators", {"params": {"filter": "state = left", "order_by": "left_at desc"}}),
        ("GET", f"{RUN}/events", {}),
        ("GET", f"{RUN}/metrics", {}),
        ("GET", f"{RUN}/metrics/series", {"params": {"key": "Environment/Cumulative Reward"}}),
        ("GET", f"{RUN}/environment_parameters", {}),
        ("POST", "/v1/runs", {"json": {"config": CONFIG, "name": "waiting", "owner": "ada", "tags": ["ci"]}}),
        ("PATCH", f"{NEXT}/environment_parameters", {"json": {"parameters": {"mass": {"value": 2.0}}}}),
        ("PATCH", NEXT, {"json": {"behaviors": {"CartPole": {"max_steps": 2000}}}}),
        ("GET", f"{NEXT}/amendments", {}),
        ("POST", f"{NEXT}:checkpoint", {}),
        ("POST", f"{NEXT}:profile", {"json": {"seconds": 1}}),
        ("GET", f"{NEXT}/profile", {}),
        ("GET", f"{RUN}/bottleneck", {}),
        ("GET", f"{RUN}/health", {}),
        ("POST", f"{NEXT}:pause", {}),
        ("POST", f"{NEXT}:resume", {}),
        ("POST", f"{NEXT}:stop", {}),
        ("POST", f"{NEXT}:cancel", {}),
        ("POST", f"{NEXT}/simulator_tokens", {"json": {"name": "arena"}}),
        ("GET", f"{RUN}/result", {}),
    ],
    "checkpoint": [
        ("GET", f"{RUN}/checkpoints", {}),
        ("POST", f"{RUN}/checkpoints/latest:pin", {}),
        ("POST", f"{RUN}/checkpoints/latest:unpin", {}),
        ("POST", f"{RUN}/checkpoints/latest:score", {"json": {"metric": "win rate", "value": 0.5}}),
        ("POST", f"{RUN}/checkpoints/latest:verify", {}),
        ("POST", "/v1/checkpoints:prune", {"json": {"older_than_seconds": 3600, "dry_run": True}}),
    ],
    "uploaded checkpoint": [
        ("POST", "/v1/checkpoints", {"content": SAC.read_bytes(), "params": {"name": "same"}}),
        ("POST", "/v1/checkpoints", {"content": SAC.read_bytes(), "params": {"name": "same"}}),
        ("GET", "/v1/checkpoints", {}),
    ],
    "alias": [
        ("GET", "/v1/aliases/champion", {}),
        ("PUT", "/v1/aliases/champion", {"json": {"checkpoint_id": "CHECKPOINT", "expected": None}}),
        ("PUT", "/v1/aliases/champion", {"json": {"checkpoint_id": "CHECKPOINT", "expected": "ckpt_other"}}),
        ("GET", "/v1/aliases/champion", {}),
        ("GET", "/v1/aliases", {}),
        ("GET", "/v1/aliases/champion/history", {}),
    ],
    "configuration": [
        ("GET", "/v1/configs/base/versions/latest", {}),
        ("POST", "/v1/configs/base/versions", {"json": {"config": CARTPOLE}}),
        ("POST", "/v1/configs/base/versions", {"json": {"config": CARTPOLE}}),
        ("GET", "/v1/configs/base/versions", {}),
        ("GET", "/v1/configs", {}),
        ("GET", "/v1/presets/cartpole", {}),
        ("POST", "/v1/runs", {"json": {"config_name": "base", "overrides": {"seed": 7}}}),
    ],
    "demonstration": [
        ("POST", "/v1/demonstrations", {"content": "RECORDED", "params": {"name": "expert"}}),
        ("POST", "/v1/demonstrations", {"content": "RECORDED", "params": {"name": "expert"}}),
        ("GET", "/v1/demonstrations", {}),
    ],
    "ladder": [
        ("GET", "/v1/ladders/league", {}),
        ("POST", "/v1/runs", {"json": {"config": PLAYING, "validate_only": True}}),
        ("POST", "/v1/ladders", {"json": {"name": "league"}}),
        ("POST", "/v1/ladders", {"json": {"name": "league"}}),
        ("GET", "/v1/ladders", {}),
        ("GET", "/v1/ladders/league", {}),
        ("POST", "/v1/runs", {"json": {"config": PLAYING, "name": "player"}}),
        ("GET", "/v1/ladders/player", {}),
        ("DELETE", "/v1/ladders/league", {}),
        ("GET", "/v1/ladders/nightly/matches", {}),
        ("GET", "/v1/ladders/nightly/ratings", {}),
        ("GET", "/v1/ladders/nightly/payoffs", {}),
        ("POST", "/v1/ladders/league:recompute", {}),
    ],
    "experiment": [
        ("POST", "/v1/experiments", {"json": EXPERIMENT}),
        ("POST", "/v1/experiments", {"json": EXPERIMENT}),
        ("GET", "/v1/experiments", {}),
        ("GET", "/v1/experiments/our-experiment", {}),
        ("PATCH", "/v1/experiments/our-experiment", {"json": {"parallelism": 2}}),
        ("POST", "/v1/experiments/our-experiment:pause", {}),
        ("POST", "/v1/experiments/our-experiment:resume", {}),
        ("POST", "/v1/experiments/our-experiment:stop", {}),
        ("POST", "/v1/experiments/our-experiment:retry", {}),
        ("GET", "/v1/experiments/our-experiment/trials", {}),
        ("DELETE", "/v1/experiments/our-experiment", {}),
    ],
    "player": [
        ("POST", "/v1/ladders/league/players", {"json": {"name": "ann", "kind": "human"}}),
        ("POST", "/v1/ladders/league/players", {"json": {"name": "ann", "kind": "human"}}),
        ("POST", "/v1/ladders/league/players", {"json": {"name": "bob", "kind": "scripted"}}),
        (
            "POST",
            "/v1/ladders/league/matches",
            {"json": {"participants": [{"player": 1}, {"player": 2}], "outcome": "win"}},
        ),
        ("GET", "/v1/ladders/league/players", {}),
    ],
    "webhook": [
        ("POST", "/v1/webhooks", {"json": {"url": "https://example.org/hook", "events": ["*"], "run": "nightly"}}),
        ("POST", "/v1/webhooks", {"json": {"url": "https://example.org/hook", "events": ["*"]}}),
        ("GET", "/v1/webhooks", {}),
    ],
    "token": [
        ("POST", "/v1/tokens", {"json": {"name": "ci", "scopes": ["run"]}}),
        ("POST", "/v1/tokens", {"json": {"name": "ci", "scopes": ["run"]}}),
        ("POST", "/v1/tokens", {"json": {"name": "one-run", "scopes": ["simulate"], "run": "nightly"}}),
        ("GET", "/v1/tokens", {}),
        ("GET", "/v1/tokens/self", {}),
    ],
    "idempotency key": [
        ("POST", "/v1/ladders", {"json": {"name": "once"}, "headers": {"Idempotency-Key": "the-same"}}),
        ("POST", "/v1/ladders", {"json": {"name": "once"}, "headers": {"Idempotency-Key": "the-same"}}),
        ("POST", "/v1/ladders", {"json": {"name": "twice"}, "headers": {"Idempotency-Key": "the-same"}}),
    ],
    "audit log": [("GET", "/v1/audit", {"params": {"filter": "status >= 400"}})],
    "worker": [
        ("GET", "/v1/workers", {}),
        *(("POST", f"/v1/workers/box:{verb}", {}) for verb in ("cordon", "drain", "uncordon")),
        ("GET", "/v1/queue", {}),
        ("GET", "/metrics", {}),
    ],
}
"""What each project does, by resource. Names are the same in both, wherever names can be chosen."""

REFUSALS = {
    "run": ["run_not_running", "run_not_running", "profile_not_found", "assessment_not_found"],
    "alias": ["alias_not_found"],
    "configuration": ["config_not_found"],
    "ladder": ["ladder_not_found", "invalid_config", "ladder_exists", "ladder_in_use"],
    "experiment": ["experiment_exists", "nothing_to_retry"],
    "player": ["player_exists"],
    "idempotency key": ["idempotency_key_reused"],
    "worker": ["scope_missing"] * 6,
}
"""What each project is refused, because of what it has itself, or has not."""

EXEMPT = {
    "POST /ui/session": "a session is no project's",
    "POST /v1/configs:upgrade": "stores nothing",
    "POST /v1/demonstrations:merge": "names demonstrations by ids alone",
    "POST /v1/demonstrations/{demonstration:name}:subsample": "named by an id alone",
    "PATCH /v1/webhooks/{webhook:name}": "named by an id alone",
    "POST /v1/webhooks/{webhook:name}:rotate": "named by an id alone",
    "POST /v1/webhooks/{webhook:name}:test": "named by an id alone",
    "POST /v1/webhooks/{webhook:name}/deliveries/{delivery:name}:redeliver": "named by an id alone",
}
"""Routes that change something and are not in the table; `test_access` walks them with another project's ids."""

_VOLATILE = re.compile(
    r"ludus_[0-9a-z]{26}_[\w+/=-]+|whsec_[\w+/=-]+"  # secrets
    r"|[a-z]+_[0-9a-z]{26}"  # ids
    r"|\d{4}-\d\d-\d\dT[\d:.]+Z|1[67]\d{8}\.\d+"  # times
    r'|(?<="hours":)\d+\.[\de-]+'
    r'|(?<="request_id":")\w+|(?<="next_page_token":")[^"]+|(?<="seed":)\d+'
)


@dataclass
class Told:
    """The answers that a project got, with ids, times and secrets replaced."""

    project: str
    ids: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=dict)

    def add(self, resource: str, step: Step, answer: httpx2.Response) -> None:
        """Note an answer."""
        telling = ("location", "idempotency-replayed", "retry-after", "etag")
        headers = {name: answer.headers[name] for name in telling if name in answer.headers}
        if "etag" in headers and "repr-digest" not in answer.headers:  # a hash of the body, which is compared itself
            del headers["etag"]
        text = _VOLATILE.sub(self._replaced, f"{answer.status_code} {headers} {answer.text}")
        self.answers.setdefault(resource, []).append(f"{step[0]} {step[1]}: {text.replace(self.project, 'PROJECT')}")

    def _replaced(self, found: re.Match[str]) -> str:
        if not re.fullmatch(r"[a-z]+_[0-9a-z]{26}", found[0]):
            return "..."
        # The same id is the same name in all answers of a project: one of another project would be a new name.
        return self.ids.setdefault(found[0], f"{found[0].partition('_')[0]}#{len(self.ids)}")


def act(world: World, project: str, folder: Path) -> Told:
    """Let a project do everything in the table, after it has trained a run."""
    folder.mkdir()
    made = world.http.post("/v1/tokens", json={"name": "admin", "scopes": ["admin"], "project": project})
    token = {"Authorization": f"Bearer {made.json()['token']}"}
    told = Told(project)
    world.http.post(
        "/v1/runs", json={"config": CONFIG, "name": "nightly", "tags": ["ci"]}, headers=token
    ).raise_for_status()
    trainer = world.claim(world.http.get("/v1/runs/nightly", headers=token).json()["id"]).start()
    trainer.measure("Environment/Cumulative Reward", [1.0])
    trainer.write_log("trainer.log", b"hello", folder)
    checkpoint = trainer.save(100, {"CartPole.onnx": b"model"}, folder)
    trainer.ledger.simulators.connected("same-session-id", number=0, collector=0, behaviors=["CartPole"])
    trainer.ledger.matches.append([make_match(1), make_match(2, "draw", snapshot=1)])
    trainer.finish()
    rate_all(world.services.database)
    recording = recorded(folder)
    for resource, steps in TABLE.items():
        for step in steps:
            method, path, content = step
            content = {"headers": {}, **content}
            if "content" in content:
                content["headers"] = {"Content-Type": "application/octet-stream"}
                content["content"] = recording if content["content"] == "RECORDED" else content["content"]
            if "checkpoint_id" in content.get("json", {}):
                content["json"] = {**content["json"], "checkpoint_id": checkpoint}
            content["headers"] = {**content["headers"], **token}
            told.add(resource, step, world.http.request(method, path, **content))
    return told


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, Told]:
    """What a project is told that a server has alone, and what another one is told that does the same after it."""
    home = tmp_path_factory.mktemp("apart")
    with open_world(home, token="boss") as world:
        return act(world, "acme", home / "acme"), act(world, "globex", home / "globex")


@pytest.fixture
def alone(told: tuple[Told, Told]) -> Told:
    return told[0]


@pytest.fixture
def second(told: tuple[Told, Told]) -> Told:
    return told[1]


@pytest.mark.xdist_group("projects apart")
@pytest.mark.parametrize("resource", TABLE)
def test_a_project_is_told_the_same_whether_or_not_another_one_has_the_same_names(
    alone: Told, second: Told, resource: str
) -> None:
    assert second.answers[resource] == alone.answers[resource]
    assert "acme" not in str(second.answers[resource])


@pytest.mark.xdist_group("projects apart")
def test_all_else_succeeds_so_that_the_answers_are_worth_comparing(alone: Told) -> None:
    codes = {
        resource: [code for answer in answers for code in re.findall(r'"code":"(\w+)","request_id"', answer)]
        for resource, answers in alone.answers.items()
    }

    assert {resource: found for resource, found in codes.items() if found} == REFUSALS


def test_the_table_has_every_route_that_changes_something() -> None:
    asked = [f"{method} {path}" for steps in TABLE.values() for method, path, _ in steps]
    routes = [
        (f"{method} {route.path}", route.path_regex)  # type: ignore[attr-defined]  # all are FastAPI's
        for router in ROUTERS
        for route in router.routes
        for method in route.methods - {"GET", "DELETE"}  # type: ignore[attr-defined]
    ]
    missing = [
        name
        for name, pattern in routes
        if not any(each.startswith(name.split()[0]) and pattern.match(each.split()[1]) for each in asked)
    ]

    assert sorted(missing) == sorted(EXEMPT)
