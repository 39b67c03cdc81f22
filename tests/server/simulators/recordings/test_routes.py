"""Recordings over HTTP: listed, read, downloaded and deleted, by those who may."""

from pathlib import Path

import pytest

from ludus.client import Client
from ludus.play.recordings.file import summarize
from server.kit.errors import ArtifactNotFound
from tests.recordings import SPOILED, store
from tests.server.app.world import Trainer, World, open_world


@pytest.fixture
def trainer(world: World) -> Trainer:
    return world.claim(world.create()["id"]).start()


def events_of(world: World, run_id: str) -> list[dict[str, object]]:
    events: list[dict[str, object]] = world.http.get(f"/v1/runs/{run_id}/events").json()["events"]
    return events


def test_a_recording_is_listed_and_its_file_comes_back_in_parts(world: World, trainer: Trainer, tmp_path: Path) -> None:
    new = store(trainer, tmp_path)

    (listed,) = world.http.get(f"/v1/runs/{trainer.run_id}/recordings").json()["recordings"]
    path = f"/v1/runs/{trainer.run_id}/recordings/{new.id}/file"
    whole = world.http.get(path)
    part = world.http.get(path, headers={"Range": "bytes=8-15"})

    assert (listed["id"], listed["cause"], listed["code"], listed["frames"]) == (
        new.id,
        "error",
        "malformed_message",
        new.frames,
    )
    assert (whole.status_code, part.status_code, part.content) == (200, 206, whole.content[8:16])
    (event,) = [event for event in events_of(world, trainer.run_id) if event["type"] == "session_recorded"]
    assert "ludus recording download" in str(event["message"])


def test_messages_are_read_in_parts_in_numbers_and_words(world: World, trainer: Trainer, tmp_path: Path) -> None:
    new = store(trainer, tmp_path)
    with Client(world.server) as client:
        frames = list(client.recordings.frames(trainer.run_id, new.id))
        some = list(client.recordings.frames(trainer.run_id, new.id, start=2, limit=2))

    assert [frame.number for frame in frames] == list(range(1, 83))
    assert [frame.kind for frame in some] == ["step", "actions"]
    (step,), (actions,) = some[0].behaviors, some[1].behaviors
    assert (step.agents, step.rewards[0], len(step.observations[0][1])) == ((0, 7), 1.0, 4)
    assert (actions.continuous, actions.discrete) == (((0.25,), (-0.5,)), ((0,), (1,)))
    assert (frames[-1].kind, frames[-1].problem) == ("unreadable", "malformed_message")


def test_the_client_downloads_what_replays(world: World, trainer: Trainer, tmp_path: Path) -> None:
    new = store(trainer, tmp_path)
    with Client(world.server) as client:
        file = client.recordings.download(trainer.run_id, new.id, tmp_path / "here.ludusrec")
        client.recordings.delete(trainer.run_id, new.id)
        assert list(client.recordings.list(trainer.run_id)) == []

    assert summarize(file).end == SPOILED
    assert world.http.get(f"/v1/runs/{trainer.run_id}/recordings/{new.id}/file").json()["code"] == "recording_not_found"
    world.purge(purge_delay_seconds=0.0)
    with pytest.raises(ArtifactNotFound):
        world.services.artifacts.size(new.path)


@pytest.mark.parametrize("path", ["", "/frames", "/file"])
def test_a_recording_is_its_own_run_s_alone(world: World, trainer: Trainer, tmp_path: Path, path: str) -> None:
    new = store(trainer, tmp_path)
    other = world.create()["id"]

    answer = world.http.request("GET" if path else "DELETE", f"/v1/runs/{other}/recordings/{new.id}{path}")

    assert (answer.status_code, answer.json()["code"]) == (404, "recording_not_found")


def test_a_damaged_file_is_a_problem_with_a_sentence(world: World, trainer: Trainer, tmp_path: Path) -> None:
    new = store(trainer, tmp_path)
    (tmp_path / "spoiled").write_bytes(b"x" * new.size)
    world.services.artifacts.publish(tmp_path / "spoiled", new.path)

    answer = world.http.get(f"/v1/runs/{trainer.run_id}/recordings/{new.id}/frames")

    assert (answer.status_code, answer.json()["code"]) == (422, "recording_invalid")
    assert "no recording" in answer.json()["detail"]


def test_the_oldest_make_room_for_a_new_one(world: World, tmp_path: Path) -> None:
    config = {"behaviors": {"CartPole": {}}, "simulators": {"record": {"total_bytes": 1 << 16}}}
    trainer = world.claim(world.create(config)["id"]).start()
    stored = [store(trainer, tmp_path, steps=400) for _ in range(12)]
    sizes = [new.size for new in stored]
    assert sum(sizes) > 1 << 16

    with Client(world.server) as client:
        kept = [one.id for one in client.recordings.list(trainer.run_id)]

    assert kept == [new.id for new in stored[: -len(kept) - 1 : -1]]
    assert (1 << 16) - sizes[0] < len(kept) * sizes[0] <= 1 << 16


def test_recordings_go_with_their_run(world: World, trainer: Trainer, tmp_path: Path) -> None:
    store(trainer, tmp_path)
    trainer.finish()

    assert world.http.delete(f"/v1/runs/{trainer.run_id}").status_code == 204

    assert world.http.get(f"/v1/runs/{trainer.run_id}/recordings").status_code == 404


def test_reading_takes_the_scope_run_and_is_noted(tmp_path: Path) -> None:
    with open_world(tmp_path / "home", token="boss") as world:
        trainer = world.claim(world.create()["id"]).start()
        new = store(trainer, tmp_path)
        path = f"/v1/runs/{trainer.run_id}/recordings"
        tokens = {
            scope: world.http.post("/v1/tokens", json={"name": scope, "scopes": [scope]}).json()["token"]
            for scope in ("read", "run")
        }

        def ask(scope: str, below: str) -> int:
            answer = world.http.get(path + below, headers={"Authorization": f"Bearer {tokens[scope]}"})
            return int(answer.status_code)

        content = [f"/{new.id}/frames", f"/{new.id}/file"]
        assert [ask("read", below) for below in ("", *content)] == [200, 403, 403]
        assert [ask("run", below) for below in ("", *content)] == [200, 200, 200]
        entries = world.http.get("/v1/audit").json()["entries"]

    read = {(entry["actor"], entry["target"].removeprefix(path), entry["status"]) for entry in entries}
    assert {(scope, below, status) for scope, status in (("read", 403), ("run", 200)) for below in content} <= read
    assert not [entry for entry in read if entry[1] == ""]
