import base64
import hashlib
import math
from pathlib import Path

import httpx2
import pytest

from server.workers.repository import WorkerInfo, WorkerRegistry
from tests.factories import give_up
from tests.server.app.world import World


def test_checkpoints_are_listed_newest_first_and_latest_names_the_newest(world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create()["id"]).start()
    older = trainer.save(100, {"CartPole.onnx": b"a"}, tmp_path)
    newer = trainer.save(200, {"CartPole.onnx": b"bb"}, tmp_path)

    page = world.http.get(f"/v1/runs/{trainer.run_id}/checkpoints").json()
    latest = world.http.get(f"/v1/runs/{trainer.run_id}/checkpoints/latest").json()

    assert [each["id"] for each in page["checkpoints"]] == [newer, older]
    assert latest["id"] == newer
    assert latest["metrics"] == {"CartPole": 12.5}
    digest = hashlib.sha256(b"bb").hexdigest()
    assert latest["files"] == [{"name": "CartPole.onnx", "size": 2, "sha256": digest, "model": None}]


def test_a_file_comes_with_its_checksum(world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create()["id"]).start()
    content = bytes(range(256)) * 5000
    checkpoint = trainer.save(100, {"state.safetensors": content}, tmp_path)
    path = f"/v1/runs/{trainer.run_id}/checkpoints/{checkpoint}/files/state.safetensors"

    answer = world.http.get(path)
    again = world.http.get(path, headers={"If-None-Match": answer.headers["etag"]})

    digest = hashlib.sha256(content)
    assert answer.content == content
    assert answer.headers["etag"] == f'"{digest.hexdigest()}"'
    assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    assert answer.headers["content-length"] == str(len(content))
    assert (again.status_code, again.content) == (304, b"")


def test_what_is_not_there_is_a_404_and_what_retention_removed_a_410(world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create()["id"]).start()
    base = f"/v1/runs/{trainer.run_id}/checkpoints"
    none_yet = world.http.get(f"{base}/latest")
    checkpoint = trainer.save(100, {"a.onnx": b"a"}, tmp_path)
    wrong_file = world.http.get(f"{base}/{checkpoint}/files/b.onnx")
    outside = world.http.get(f"{base}/{checkpoint}/files/..%2F..%2Fludus.db")
    foreign = world.http.get(f"/v1/runs/{world.create()['id']}/checkpoints/{checkpoint}")
    give_up(world.services.database, checkpoint)
    deleted = world.http.get(f"{base}/{checkpoint}/files/a.onnx")

    assert (none_yet.status_code, none_yet.json()["code"]) == (404, "checkpoint_not_found")
    assert (wrong_file.status_code, wrong_file.json()["code"]) == (404, "artifact_not_found")
    assert wrong_file.json()["detail"].endswith("has no file 'b.onnx'. The checkpoint has a.onnx.")
    assert outside.status_code == 404
    assert (foreign.status_code, foreign.json()["code"]) == (404, "checkpoint_not_found")
    assert (deleted.status_code, deleted.json()["code"]) == (410, "checkpoint_deleted")
    assert world.http.get(base).json()["checkpoints"] == []
    assert world.http.get(base, params={"show_deleted": True}).json()["checkpoints"][0]["deleted_at"] is not None


def test_the_newest_value_of_each_metric_is_shown(world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.measure("Environment/Cumulative Reward", [10.0, 20.0])
    trainer.measure("Losses/Policy Loss", [math.nan])

    metrics = world.http.get(f"/v1/runs/{trainer.run_id}/metrics").json()["metrics"]

    assert {(each["behavior"], each["key"], each["step"], each["value"]) for each in metrics} >= {
        ("CartPole", "Environment/Cumulative Reward", 200, 20.0)
    }
    assert all(each["value"] is None for each in metrics if each["key"] == "Losses/Policy Loss")


def test_a_series_is_thinned_and_keeps_its_spikes(world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.measure("Environment/Cumulative Reward", [0.0] * 500 + [1000.0] + [0.0] * 499)

    answer = world.http.get(
        f"/v1/runs/{trainer.run_id}/metrics/series", params={"key": "Environment/Cumulative Reward", "points": 50}
    )

    [series] = answer.json()["series"]
    assert (series["behavior"], series["total"]) == ("CartPole", 1000)
    assert len(series["steps"]) == len(series["times"]) == len(series["values"]) <= 50
    assert max(series["maxima"]) == 1000.0
    assert series["steps"][-1] == 100_000
    assert sum(series["counts"]) == 1000


def test_an_unknown_metric_has_no_series(world: World) -> None:
    run = world.create()

    for parameters in ({"key": "No/Such"}, {"key": "No/Such", "behavior": "CartPole"}):
        answer = world.http.get(f"/v1/runs/{run['id']}/metrics/series", params=parameters)
        assert (answer.status_code, answer.json()) == (200, {"series": []})


@pytest.mark.long
def test_a_log_is_read_in_parts_that_join_to_the_whole(world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create()["id"]).start()
    text = "Zeile: äöü€😀\n" * 60
    trainer.write_log("trainer.log", text.encode(), tmp_path)
    path = f"/v1/runs/{trainer.run_id}/attempts/1/logs/trainer.log"

    parts = []
    offset = 0
    while True:
        part = world.http.get(path, params={"offset": offset, "limit": 7}).json()
        parts.append(part["text"])
        offset = part["next_offset"]
        if offset >= part["size"]:
            break

    assert "".join(parts) == text
    assert world.http.get(path, params={"tail": 5}).json()["text"] == "😀\n"
    assert world.http.get(path, params={"tail": 3}).json()["text"] == "\n"
    assert world.http.get(path, params={"offset": 10**9}).json() == {
        "text": "",
        "offset": len(text.encode()),
        "next_offset": len(text.encode()),
        "size": len(text.encode()),
    }


@pytest.mark.long
def test_bytes_that_are_no_text_do_not_hold_a_reader_up(world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.write_log("player.log", b"\x80" * 50 + b"\xf0" * 50 + b"end", tmp_path)
    path = f"/v1/runs/{trainer.run_id}/attempts/1/logs/player.log"

    offset, text = 0, ""
    for _ in range(200):
        part = world.http.get(path, params={"offset": offset, "limit": 4}).json()
        assert part["next_offset"] > offset or part["next_offset"] == part["size"]
        offset, text = part["next_offset"], text + part["text"]

    assert text.endswith("end")


def test_logs_are_listed_by_attempt(world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create()["id"]).start()
    trainer.write_log("trainer.log", b"hello", tmp_path)
    base = f"/v1/runs/{trainer.run_id}"

    [log] = world.http.get(f"{base}/logs").json()["logs"]

    assert (log["attempt"], log["name"], log["size"]) == (1, "trainer.log", 5)
    assert world.http.get(f"{base}/attempts/1/logs").json()["logs"] == [log]
    assert world.http.get(f"{base}/attempts/2/logs").json()["logs"] == []
    missing = world.http.get(f"{base}/attempts/1/logs/other.log")
    assert (missing.status_code, missing.json()["code"]) == (404, "log_not_found")


def test_attempts_say_who_trained_where(world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()

    [attempt] = world.http.get(f"/v1/runs/{trainer.run_id}/attempts").json()["attempts"]

    assert (attempt["number"], attempt["worker_id"], attempt["outcome"]) == (1, "host/1/1", None)
    assert attempt["endpoints"] == [{"address": "127.0.0.1:4000", "index": 0}]


def test_simulators_connected_and_past_say_why_they_left(world: World) -> None:
    trainer = world.claim(world.create()["id"]).start()
    for number, session_id in enumerate(("one", "two")):
        trainer.ledger.simulators.connected(session_id, number=number, collector=0, peer="10.0.0.1:5", label="demo")
        trainer.ledger.simulators.plays(session_id, ["CartPole"], 4)
    trainer.ledger.simulators.left("one", code="invalid_observation", reason="NaN in observation 0", steps=12)
    path = f"/v1/runs/{trainer.run_id}/simulators"

    [connected] = world.http.get(path, params={"filter": "state = connected"}).json()["simulators"]
    [left] = world.http.get(path, params={"filter": 'state = left AND label = "demo"'}).json()["simulators"]

    assert (connected["session_id"], connected["agents"], connected["left_at"]) == ("two", 4, None)
    assert (left["leave_code"], left["leave_reason"], left["steps"]) == (
        "invalid_observation",
        "NaN in observation 0",
        12,
    )


def test_simulators_of_all_runs_are_listed_with_their_run_and_by_the_time_they_left(world: World) -> None:
    for name in ("north", "south"):
        trainer = world.claim(world.create(name=name, tags=["fleet"])["id"]).start()
        for number, session_id in enumerate(("fleet-1", "fleet-2")):
            trainer.ledger.simulators.connected(session_id, number=number, collector=0)
        trainer.ledger.simulators.left("fleet-1", code="connection_lost", reason="It is gone.", steps=12)
    path = "/v1/simulators"

    connected = world.http.get(path, params={"filter": "state = connected"}).json()["simulators"]
    left = world.http.get(path, params={"filter": "leave_code = connection_lost", "order_by": "left_at desc"}).json()
    first = world.http.get(path, params={"filter": f"run_id = {trainer.run_id}", "page_size": 1}).json()
    rest = world.http.get(
        path, params={"filter": f"run_id = {trainer.run_id}", "page_token": first["next_page_token"]}
    ).json()

    assert [(each["run_name"], each["session_id"], each["project"]) for each in connected][:2] == [
        ("south", "fleet-2", "default"),
        ("north", "fleet-2", "default"),
    ]
    assert [(each["run_name"], each["leave_reason"], each["steps"]) for each in left["simulators"]][:2] == [
        ("south", "It is gone.", 12),
        ("north", "It is gone.", 12),
    ]
    assert sorted(each["session_id"] for each in first["simulators"] + rest["simulators"]) == ["fleet-1", "fleet-2"]
    assert {each["run_id"] for each in first["simulators"] + rest["simulators"]} == {trainer.run_id}


def test_workers_are_listed(world: World) -> None:
    WorkerRegistry(world.services.database).register(
        WorkerInfo("box/7/1", "box", 7, "0.1.0", ["gpu"], {"gpu": "cuda:0"})
    )

    [found] = world.http.get("/v1/workers", params={"filter": "host = box"}).json()["workers"]

    assert (found["id"], found["pid"], found["resources"]) == ("box/7/1", 7, {"gpu": "cuda:0"})


def test_versions_of_a_configuration_count_up_and_differ(http: httpx2.Client) -> None:
    path = "/v1/configs/versions-test/versions"
    source = "# mine\nbehaviors: {CartPole: {max_steps: 1000}}\n"
    first = http.post(path, json={"config": source, "description": "one"})
    equal = http.post(path, content=source, headers={"Content-Type": "text/yaml"})
    second = http.post(path, json={"config": {"behaviors": {"CartPole": {"max_steps": 2000}}}})

    assert [answer.status_code for answer in (first, equal, second)] == [201, 200, 201]
    assert [answer.json()["version"] for answer in (first, equal, second)] == [1, 1, 2]
    assert first.headers["location"] == "/v1/configs/versions-test/versions/1"
    assert http.get(f"{path}/1").json()["source"] == source
    assert http.get(f"{path}/1/source").text == source
    assert http.get(f"{path}/latest").json()["version"] == 2
    assert [each["version"] for each in http.get(path).json()["versions"]] == [2, 1]
    assert http.get("/v1/configs/versions-test:diff", params={"old": 1, "new": 2}).json()["changes"] == [
        {"path": "behaviors.CartPole.max_steps", "kind": "changed", "old": 1000, "new": 2000}
    ]
    body = {"config_name": "versions-test", "overrides": {"behaviors.CartPole.max_steps": 7}, "name": "of-a-version"}
    run = http.post("/v1/runs", json=body).json()["id"]
    http.patch(f"/v1/runs/{run}", json={"behaviors": {"CartPole": {"max_steps": 9}}}).raise_for_status()
    compared = http.get("/v1/configs/versions-test:diff", params={"old": 2, "run": "of-a-version"}).json()
    assert (compared["run"], compared["new"]) == ("of-a-version", None)
    assert [(each["path"], each["old"], each["new"]) for each in compared["changes"] if each["path"] != "seed"] == [
        ("behaviors.CartPole.max_steps", 2000, 7)
    ], "what the run was created with, not what it has now"
    for wrong in ({}, {"new": 1, "run": run}):
        assert http.get("/v1/configs/versions-test:diff", params={"old": 1, **wrong}).json()["code"] == "invalid_query"
    assert http.get("/v1/configs/versions-test:diff?old=1&run=gone").json()["code"] == "run_not_found"
    named = http.get("/v1/configs", params={"filter": 'name = "versions-*"'}).json()["configs"]
    assert [(each["name"], each["version"]) for each in named] == [("versions-test", 2)]


def test_a_configuration_that_is_not_there_is_a_404(http: httpx2.Client) -> None:
    for path in (
        "/v1/configs/nobody/versions",
        "/v1/configs/nobody/versions/latest",
        "/v1/configs/nobody:diff?old=1&new=2",
    ):
        answer = http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "config_not_found")
