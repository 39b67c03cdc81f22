"""Checkpoints of ML-Agents over HTTP."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.server.app.world import World, build_services, serving
from tests.server.checkpoints.test_uploads import SAC

HEADERS = {"Content-Type": "application/octet-stream"}
FILE_BYTES = 100_000
UNKNOWN = f"ckpt_{'0' * 26}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("checkpoints")
    services = build_services(folder, storage={"root": folder / "artifacts", "checkpoint_bytes": FILE_BYTES})
    with serving(services) as server, httpx2.Client(base_url=server, timeout=30) as http:
        yield World(services, server, http)


def send(world: World, content: bytes, **parameters: str) -> httpx2.Response:
    return world.http.post("/v1/checkpoints", content=content, params=parameters, headers=HEADERS)


def stored(world: World, **parameters: str) -> dict[str, Any]:
    answer = send(world, SAC.read_bytes(), **parameters)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def leftovers(world: World) -> list[str]:
    """Name what lies in the artifact store without a row."""
    root = world.services.settings.storage.root
    listed = world.http.get("/v1/checkpoints", params={"page_size": 1000}).json()["checkpoints"]
    folders = {path.name for path in (root / "checkpoints").glob("*")}
    return [*(folders - {each["id"] for each in listed}), *(path.name for path in (root / ".uploads").glob("*"))]


def document(checkpoint: str) -> dict[str, Any]:
    return {"behaviors": {"A": {"initialize_from": checkpoint}}}


def test_an_uploaded_checkpoint_is_listed_and_shown(world: World) -> None:
    answer = send(world, SAC.read_bytes(), name="striker-5", behavior="Striker?team=0")
    created = answer.json()

    listed = world.http.get("/v1/checkpoints", params={"filter": "name = striker-*"}).json()["checkpoints"]

    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/checkpoints/{created['id']}")
    assert world.http.get(answer.headers["location"]).json() == created
    assert listed == [created]
    assert (created["name"], created["behavior"], created["format"]) == ("striker-5", "Striker?team=0", "mlagents")
    assert "Optimizer:q_network" in created["modules"]
    assert created["size"] == SAC.stat().st_size
    assert leftovers(world) == []


def test_lists_are_filtered_and_ordered(world: World) -> None:
    ids = [stored(world, name=f"ordered-{letter}", behavior="Sorted")["id"] for letter in "ca"]

    page = world.http.get("/v1/checkpoints", params={"filter": "behavior = Sorted", "order_by": "name asc"}).json()

    assert [each["id"] for each in page["checkpoints"]] == ids[::-1]


def test_a_repeated_upload_keeps_one_file(world: World) -> None:
    headers = {**HEADERS, "Idempotency-Key": "checkpoint-once"}

    first, second = (world.http.post("/v1/checkpoints", content=SAC.read_bytes(), headers=headers) for _ in range(2))

    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    assert leftovers(world) == []


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04garbage"])
def test_garbage_is_refused_and_nothing_stays(world: World, content: bytes) -> None:
    answer = send(world, content)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_checkpoint")
    assert "checkpoint.pt" in answer.json()["detail"]
    assert leftovers(world) == []


def test_what_is_too_large_is_refused_before_it_is_read(world: World) -> None:
    answer = send(world, bytes(FILE_BYTES + 1))

    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert "LUDUS_STORAGE__CHECKPOINT_BYTES" in answer.json()["detail"]
    assert leftovers(world) == []


def test_a_form_is_refused(world: World) -> None:
    answer = world.http.post("/v1/checkpoints", files={"file": SAC.read_bytes()})

    assert answer.status_code == 415
    assert "ludus checkpoint upload" in answer.json()["detail"]


def test_a_run_may_name_it_and_then_it_stays(world: World) -> None:
    checkpoint = stored(world)["id"]

    planned = world.http.post("/v1/runs", json={"config": document(checkpoint), "validate_only": True})
    run = world.http.post("/v1/runs", json={"config": document(checkpoint)})
    refused = world.http.delete(f"/v1/checkpoints/{checkpoint}")
    world.http.post(f"/v1/runs/{run.json()['id']}:cancel")
    gone = world.http.delete(f"/v1/checkpoints/{checkpoint}")

    assert (planned.status_code, run.status_code) == (200, 201)
    assert run.json()["config"]["behaviors"]["A"]["initialize_from"] == checkpoint
    assert (refused.status_code, refused.json()["code"]) == (409, "checkpoint_in_use")
    assert run.json()["id"] in refused.json()["detail"]
    assert gone.status_code == 204
    assert world.http.get(f"/v1/checkpoints/{checkpoint}").status_code == 404
    assert world.purge(purge_delay_seconds=3600) == 0
    assert leftovers(world) == [checkpoint], "an older copy of the database names the file"
    assert world.purge() == 1
    assert leftovers(world) == []


@pytest.mark.parametrize("validate_only", [True, False])
def test_an_id_that_does_not_exist_is_told_with_its_path(world: World, validate_only: bool) -> None:
    answer = world.http.post("/v1/runs", json={"config": document(UNKNOWN), "validate_only": validate_only})

    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["path"], error["code"]) == ("behaviors.A.initialize_from", "not_found")
    assert "ludus checkpoint upload" in error["message"]


def test_a_path_is_refused_with_the_way_to_go(world: World) -> None:
    config = {"behaviors": {"A": {"init_path": "results/old/A/checkpoint.pt"}}}

    answer = world.http.post("/v1/runs", json={"config": config})

    (error,) = answer.json()["errors"]
    assert (error["path"], error["code"]) == ("behaviors.A.init_path", "path_refused")
    assert "ludus checkpoint upload" in error["message"]


def test_what_does_not_exist_is_not_found(world: World) -> None:
    for call in (world.http.get, world.http.delete):
        answer = call(f"/v1/checkpoints/{UNKNOWN}")
        assert (answer.status_code, answer.json()["code"]) == (404, "checkpoint_not_found")
