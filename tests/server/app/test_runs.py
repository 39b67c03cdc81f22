import threading
import time
from pathlib import Path

import httpx2
import pytest

from ludus.schemas.states import RunState, StopReason
from tests.server.app.world import CARTPOLE, World
from tests.server.demonstrations.recordings import stored
from tests.waiting import eventually

YAML = """\
# how we train
behaviors:
  CartPole:
    max_steps: 5000
"""


def test_a_created_run_waits_with_its_configuration_resolved(world: World) -> None:
    answer = world.http.post("/v1/runs", json={"config": CARTPOLE, "name": "first", "tags": ["b", "a", "b"]})

    run = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/runs/{run['id']}"
    assert (run["state"], run["name"], run["tags"]) == ("QUEUED", "first", ["a", "b"])
    assert run["config"]["behaviors"]["CartPole"]["time_horizon"] == 64
    assert run["config"]["seed"] == run["seed"]
    assert world.services.wake_up.woken[-1] == run["id"]  # type: ignore[attr-defined]


def test_a_bare_yaml_body_is_a_configuration(http: httpx2.Client) -> None:
    answer = http.post(
        "/v1/runs",
        content=YAML,
        headers={"Content-Type": "application/yaml; charset=utf-8"},
        params={"name": "from-yaml", "tags": ["ci", "nightly"]},
    )

    run = answer.json()
    assert answer.status_code == 201
    assert (run["name"], run["tags"]) == ("from-yaml", ["ci", "nightly"])
    assert run["config"]["behaviors"]["CartPole"]["max_steps"] == 5000


def test_validate_only_answers_the_resolved_configuration_and_queues_nothing(world: World) -> None:
    before = len(world.http.get("/v1/runs", params={"page_size": 1000}).json()["runs"])

    answer = world.http.post("/v1/runs", json={"config": YAML, "validate_only": True, "overrides": {"seed": 7}})

    assert answer.status_code == 200
    assert answer.json()["config"]["seed"] == 7
    assert len(world.http.get("/v1/runs", params={"page_size": 1000}).json()["runs"]) == before


def test_a_run_comes_from_a_stored_configuration_with_overrides(http: httpx2.Client) -> None:
    http.post("/v1/configs/base/versions", json={"config": YAML}).raise_for_status()

    answer = http.post(
        "/v1/runs", json={"config_name": "base", "overrides": {"behaviors.CartPole.hyperparameters.batch_size": 64}}
    )

    run = answer.json()
    assert (run["config_name"], run["config_version"]) == ("base", 1)
    assert run["config"]["behaviors"]["CartPole"]["hyperparameters"]["batch_size"] == 64
    assert run["config"]["behaviors"]["CartPole"]["max_steps"] == 5000


def test_all_mistakes_of_a_configuration_come_at_once_with_their_paths(http: httpx2.Client) -> None:
    wrong = {
        "behaviors": {
            "CartPole": {"max_stepz": 10, "hyperparameters": {"batch_size": "many", "buffer_size": 64, "lambd": 2}}
        }
    }

    answer = http.post("/v1/runs", json={"config": wrong})

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid_config")
    found = {(item["location"], item["path"]): item for item in problem["errors"]}
    assert {path for _, path in found} >= {
        "behaviors.CartPole.max_stepz",
        "behaviors.CartPole.hyperparameters.batch_size",
        "behaviors.CartPole.hyperparameters.lambd",
    }
    assert "max_steps" in found["config", "behaviors.CartPole.max_stepz"]["message"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"name": "x"}, ""),
        ({"config": CARTPOLE, "config_name": "base"}, ""),
        ({"config": CARTPOLE, "config_version": 1}, ""),
        ({"config": CARTPOLE, "nam": "x"}, "nam"),
        ({"config": CARTPOLE, "name": "no spaces"}, "name"),
        ({"config": CARTPOLE, "name": "x\x00"}, "name"),
        ({"config": CARTPOLE, "tags": [3]}, "tags.0"),
        ({"config": CARTPOLE, "priority": 10**9}, "priority"),
    ],
)
def test_a_wrong_envelope_is_refused_with_the_path(http: httpx2.Client, body: dict[str, object], path: str) -> None:
    answer = http.post("/v1/runs", json=body)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert path in {item["path"] for item in answer.json()["errors"]}


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code"),
    [
        (b"{", "application/json", 400, "invalid_body"),
        (b'{"config": {}, "config": {}}', "application/json", 400, "invalid_body"),
        (b"[" * 100_000, "application/json", 400, "invalid_body"),
        (b'{"name": "\xff"}', "application/json", 400, "invalid_body"),
        (b"[]", "application/json", 422, "invalid_request"),
        (b"behaviors: [", "application/yaml", 422, "invalid_config"),
        (b"a: &a [*a, *a]", "application/yaml", 422, "invalid_config"),
        (b"", "application/yaml", 422, "invalid_config"),
        (b"\xff\xfe", "application/yaml", 400, "invalid_body"),
        (b"<run/>", "application/xml", 415, "unsupported_media_type"),
        (b"{}", "", 415, "unsupported_media_type"),
    ],
)
def test_a_body_that_is_no_run_is_refused(
    http: httpx2.Client, content: bytes, media_type: str, status: int, code: str
) -> None:
    answer = http.post("/v1/runs", content=content, headers={"Content-Type": media_type} if media_type else {})

    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_body_beyond_the_limit_is_refused_whether_its_length_is_announced_or_not(world: World) -> None:
    announced = world.http.post("/v1/runs", content=b"x" * 10_000_000, headers={"Content-Type": "application/yaml"})
    chunks = (b"x" * 100_000 for _ in range(30))
    with httpx2.Client(base_url=world.server) as other:
        streamed = other.post("/v1/runs", content=chunks, headers={"Content-Type": "application/yaml"})

    for answer in (announced, streamed):
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


def test_a_run_is_found_by_id_and_its_name_means_the_newest(world: World) -> None:
    older, newer = world.create(name="twice"), world.create(name="twice")

    assert world.http.get(f"/v1/runs/{older['id']}").json()["id"] == older["id"]
    assert world.http.get("/v1/runs/twice").json()["id"] == newer["id"]
    missing = world.http.get("/v1/runs/nobody")
    assert (missing.status_code, missing.json()["code"]) == (404, "run_not_found")


def test_pages_of_a_filtered_list_partition_it_and_carry_no_configuration(world: World) -> None:
    ids = {world.create(tags=["paged"], name=f"page-{i}")["id"] for i in range(7)}
    query = {"filter": 'tags = "paged" AND state = QUEUED', "order_by": "name desc", "page_size": "3"}

    seen: list[dict[str, object]] = []
    token = ""
    while True:
        page = world.http.get("/v1/runs", params=query | ({"page_token": token} if token else {})).json()
        seen += page["runs"]
        token = page["next_page_token"]
        if not token:
            break

    assert [run["name"] for run in seen] == [f"page-{i}" for i in reversed(range(7))]
    assert {run["id"] for run in seen} == ids
    assert all("config" not in run for run in seen)


def test_a_page_token_of_another_filter_is_refused(world: World) -> None:
    for _ in range(2):
        world.create(tags=["tokens"])
    query = {"filter": 'tags = "tokens"', "page_size": "1"}
    token = world.http.get("/v1/runs", params=query).json()["next_page_token"]

    for parameters in ({"page_token": token}, {**query, "page_token": token[:-2]}):
        answer = world.http.get("/v1/runs", params=parameters)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_page_token")


def test_a_page_is_never_larger_than_the_maximum_and_zero_means_the_default(http: httpx2.Client) -> None:
    for size in (0, 10**9):
        assert http.get("/v1/runs", params={"page_size": size}).status_code == 200


def test_a_waiting_run_is_stopped_on_the_spot_and_stays_so(world: World) -> None:
    run = world.create()

    stopped = world.http.post(f"/v1/runs/{run['id']}:stop")
    again = world.http.post(f"/v1/runs/{run['id']}:stop")
    cancelled = world.http.post(f"/v1/runs/{run['id']}:cancel")

    assert (stopped.status_code, stopped.json()["state"]) == (200, "SUCCEEDED")
    assert again.json()["state"] == "SUCCEEDED"
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "SUCCEEDED")


@pytest.mark.parametrize("end", ["SUCCEEDED", "CANCELLED"])
def test_everything_that_an_ended_run_does_no_more_has_one_code(world: World, end: str) -> None:
    run = world.create()["id"]
    world.claim(run).start().finish(RunState(end))

    for verb in ("pause", "resume", "checkpoint", "profile"):
        answer = world.http.post(f"/v1/runs/{run}:{verb}")
        assert (answer.status_code, answer.json()["code"]) == (409, "run_ended"), verb
        assert answer.json()["details"] == {"run_id": run, "state": end}
    changes = {"behaviors": {"CartPole": {"max_steps": 5}}}
    assert world.http.patch(f"/v1/runs/{run}", json=changes).json()["code"] == "run_ended"
    lesson = {"parameters": {"mass": {"value": 1.0}}}
    assert world.http.patch(f"/v1/runs/{run}/environment_parameters", json=lesson).json()["code"] == "run_ended"
    for verb in ("stop", "cancel"):
        over = world.http.post(f"/v1/runs/{run}:{verb}")
        assert (over.status_code, over.json()["state"]) == (200, end), "who asks wants it to be over"


def test_a_live_run_is_told_its_users_wish(world: World) -> None:
    run = world.create()
    world.claim(run["id"]).start()

    assert world.http.post(f"/v1/runs/{run['id']}:stop").json()["intent"] == "stop"
    assert world.http.post(f"/v1/runs/{run['id']}:cancel").json()["intent"] == "cancel"


def test_a_wait_ends_when_the_run_gets_there(world: World) -> None:
    run = world.create()
    trainer = world.claim(run["id"])
    before = time.monotonic()
    timer = threading.Timer(0.5, trainer.start)
    timer.start()

    answer = world.http.get(f"/v1/runs/{run['id']}", params={"wait": "RUNNING,terminal", "timeout": 10})

    assert answer.json()["state"] == "RUNNING"
    assert 0.5 <= time.monotonic() - before < 3
    timer.join()


def test_a_wait_ends_with_the_run_whatever_it_waited_for(world: World) -> None:
    run = world.create()
    threading.Timer(0.3, world.claim(run["id"]).finish, [RunState.FAILED], {"reason": StopReason.DIVERGED}).start()

    answer = world.http.get(f"/v1/runs/{run['id']}", params={"wait": "PAUSED", "timeout": 10}).json()

    assert (answer["state"], answer["stop_reason"]) == ("FAILED", "diverged")


def test_a_wait_ends_at_its_time_out_with_the_run_as_it_is(world: World) -> None:
    run = world.create()

    before = time.monotonic()
    answer = world.http.get(f"/v1/runs/{run['id']}", params={"wait": "terminal", "timeout": 0.3})

    assert answer.json()["state"] == "QUEUED"
    assert time.monotonic() - before >= 0.3


@pytest.mark.long
def test_waits_beyond_the_limit_are_told_to_come_back_and_the_api_stays_quick(world: World) -> None:
    run = world.create()
    limit = world.services.waits.limit
    answers: list[httpx2.Response] = []

    def wait() -> None:
        answers.append(world.http.get(f"/v1/runs/{run['id']}", params={"wait": "terminal", "timeout": 25}))

    threads = [threading.Thread(target=wait) for _ in range(limit + 3)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(answers) >= 3, "those beyond the limit are answered")
    before = time.monotonic()
    world.http.get("/v1/runs", params={"page_size": 1}).raise_for_status()
    quick = time.monotonic() - before
    refused = [answer for answer in answers if answer.status_code == 429]
    world.http.post(f"/v1/runs/{run['id']}:stop").raise_for_status()
    for thread in threads:
        thread.join()

    assert len(refused) == 3
    assert refused[0].json()["code"] == "too_many_waiters"
    assert refused[0].headers["retry-after"] == "1"
    assert [answer.json()["state"] for answer in answers if answer.status_code == 200] == ["SUCCEEDED"] * limit
    assert quick < 1


def test_the_state_to_wait_for_must_exist(http: httpx2.Client, world: World) -> None:
    run = world.create()

    answer = http.get(f"/v1/runs/{run['id']}", params={"wait": "DREAMING"})

    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "wait")


def test_a_run_that_only_imitates_is_a_clone_run_and_another_kind_is_refused(
    http: httpx2.Client, world: World, tmp_path: Path
) -> None:
    demonstration = stored(world, tmp_path)["id"]
    config = {"behaviors": {"Walker": {"trainer_type": "clone", "demonstrations": [demonstration]}}}

    planned = http.post("/v1/runs", json={"config": config, "validate_only": True})
    refused = http.post("/v1/runs", json={"config": config, "validate_only": True, "kind": "train"})

    assert (planned.status_code, planned.json()["kind"]) == (200, "clone")
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "kind")


def test_a_run_is_called_as_its_configuration_says_unless_it_is_given_a_name(http: httpx2.Client) -> None:
    config = {"behaviors": {"CartPole": {}}, "checkpoint_settings": {"run_id": "walker-3"}}

    named = http.post("/v1/runs", json={"config": config, "name": "other"}).json()
    unnamed = http.post("/v1/runs", json={"config": config}).json()
    planned = http.post("/v1/runs", json={"config": config, "validate_only": True}).json()

    assert (named["name"], unnamed["name"], planned["name"]) == ("other", "walker-3", "walker-3")


def test_a_run_has_the_seed_of_the_environment_and_one_for_each_sampler(http: httpx2.Client) -> None:
    drawn = {"sampler_type": "uniform", "sampler_parameters": {}}
    config = {
        "behaviors": {"CartPole": {}},
        "env_settings": {"seed": 41},
        "environment_parameters": {"z": drawn, "a": drawn},
    }

    run = http.post("/v1/runs", json={"config": config}).json()

    assert run["seed"] == run["config"]["seed"] == 41
    seeds = {name: form["sampler_parameters"]["seed"] for name, form in run["config"]["environment_parameters"].items()}
    assert seeds == {"z": 41, "a": 42}


def test_a_run_that_ludus_cannot_do_yet_is_refused_by_key(http: httpx2.Client) -> None:
    config = {"behaviors": {"CartPole": {}}, "checkpoint_settings": {"resume": True}}
    answer = http.post("/v1/runs", json={"config": config})

    assert answer.status_code == 422
    assert "checkpoint_settings.resume" in answer.text
