"""Demonstrations over HTTP."""

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ludus.demonstrations import inspect, read, thin
from ludus.reading import read_record
from ludus.schemas import DemonstrationStatistics
from server.config.presets import read_preset
from server.demonstrations.refs import spec_to_json
from server.kit.http.uploads import FORGOTTEN_SECONDS
from server.kit.principal import ANONYMOUS
from tests.ludus.demonstrations.shown import assert_equal, make_demonstration, make_spec, vector
from tests.server.app.world import World
from tests.server.demonstrations.conftest import FILE_BYTES
from tests.server.demonstrations.recordings import HEADERS, leftovers, recorded, send, stored

UNKNOWN = f"dem_{'0' * 26}"


def gail(*ids: str) -> dict[str, Any]:
    return {"behaviors": {"A": {"reward_signals": {"gail": {"demonstrations": list(ids)}}}}}


@pytest.mark.parametrize("suffix", [".npz", ".demo"])
def test_an_uploaded_file_is_inspected_and_comes_back_as_it_was(world: World, tmp_path: Path, suffix: str) -> None:
    shown = make_demonstration(make_spec(vector(3), branches=(2, 4)), lengths=(5, 7), endings="et")
    content = recorded(tmp_path, shown, suffix)

    answer = send(world, content, name="expert")
    created = answer.json()
    file = world.http.get(f"/v1/demonstrations/{created['id']}/file")

    assert (answer.status_code, answer.headers["location"]) == (201, f"/v1/demonstrations/{created['id']}")
    assert world.http.get(answer.headers["location"]).json() == created
    assert created["name"] == "expert"
    assert created["summary"]["discrete"] == [
        np.bincount(shown.discrete[:, 0], minlength=2).tolist(),
        *created["summary"]["discrete"][1:],
    ]
    assert created["summary"]["returns"]["mean"] == pytest.approx(created["mean_return"])
    assert (created["transitions"], created["episodes"], created["origin"]) == (12, 2, {})
    assert file.content == content
    assert file.headers["etag"] == f'"{hashlib.sha256(content).hexdigest()}"' == f'"{created["sha256"]}"'
    assert suffix in file.headers["content-disposition"]
    again = world.http.get(f"/v1/demonstrations/{created['id']}/file", headers={"If-None-Match": file.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    part = world.http.get(f"/v1/demonstrations/{created['id']}/file", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, content[10:20])


def test_the_inspection_is_that_of_the_library(world: World, tmp_path: Path) -> None:
    shown = make_demonstration(make_spec(vector(2), continuous=2), lengths=(9, 1, 4), endings="etc")

    created = stored(world, tmp_path, shown)

    assert read_record(DemonstrationStatistics, created["summary"]) == inspect(shown)


def test_a_list_shows_specs_and_can_be_filtered(world: World, tmp_path: Path) -> None:
    spec = make_spec(vector(4), continuous=2, name="Listed")
    ids = [stored(world, tmp_path, make_demonstration(spec, lengths=(n,)), name=f"list-{n}")["id"] for n in (1, 2, 3)]

    page = world.http.get("/v1/demonstrations", params={"filter": "behavior = Listed AND transitions >= 2"}).json()
    sorted_page = world.http.get(
        "/v1/demonstrations", params={"filter": "name = list-*", "order_by": "transitions asc", "page_size": 2}
    ).json()

    assert [each["id"] for each in page["demonstrations"]] == [ids[2], ids[1]]
    assert page["demonstrations"][0]["spec"] == spec_to_json(spec)
    assert "summary" not in page["demonstrations"][0]
    assert [each["transitions"] for each in sorted_page["demonstrations"]] == [1, 2]
    assert sorted_page["next_page_token"]


def test_a_repeated_upload_keeps_one_file(world: World, tmp_path: Path) -> None:
    content = recorded(tmp_path)
    headers = {**HEADERS, "Idempotency-Key": "upload-once"}

    first = world.http.post("/v1/demonstrations", content=content, headers=headers)
    second = world.http.post("/v1/demonstrations", content=content, headers=headers)
    other = world.http.post("/v1/demonstrations", content=content[:-1], headers=headers)

    assert first.json() == second.json()
    assert second.headers["idempotency-replayed"] == "true"
    assert other.status_code == 422
    assert leftovers(world) == []


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04garbage", b"\0" * 5000])
def test_garbage_is_refused_and_nothing_stays(world: World, content: bytes) -> None:
    answer = send(world, content)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_demonstration")
    assert leftovers(world) == []


def test_half_a_file_is_refused(world: World, tmp_path: Path) -> None:
    for suffix in (".npz", ".demo"):
        content = recorded(tmp_path, suffix=suffix)

        answer = send(world, content[: len(content) // 2])

        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_demonstration")


def test_a_file_that_is_too_large_is_refused_announced_or_not(world: World) -> None:
    announced = send(world, b"x" * (FILE_BYTES + 1))
    streamed = world.http.post(
        "/v1/demonstrations", content=(b"x" * 10_000 for _ in range(FILE_BYTES // 10_000 + 1)), headers=HEADERS
    )

    for answer in (announced, streamed):
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert f"{FILE_BYTES} bytes" in answer.json()["detail"]
        assert "LUDUS_STORAGE__DEMONSTRATION_BYTES" in answer.json()["detail"]
    assert leftovers(world) == []


def test_a_bomb_is_refused_before_it_is_unpacked(world: World, tmp_path: Path) -> None:
    shown = make_demonstration(make_spec(vector(500), continuous=1), lengths=(600,))
    flat = make_demonstration(
        shown.spec, lengths=(600,), observations=(np.zeros((600, 500), np.float32),)
    )  # 1.2 MB of zeros, a few kB as an archive
    content = recorded(tmp_path, flat)

    answer = send(world, content)

    assert len(content) < FILE_BYTES
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_demonstration")
    assert "more than" in answer.json()["detail"]


def test_what_a_killed_server_left_of_an_upload_is_cleared_away_with_a_later_one(world: World, tmp_path: Path) -> None:
    folder = world.services.settings.storage.root / ".uploads"
    folder.mkdir(parents=True, exist_ok=True)
    for name, age in {"old": 2 * FORGOTTEN_SECONDS, "new": 0.0}.items():
        (folder / name).write_bytes(b"half a file")
        os.utime(folder / name, times=(time.time() - age, time.time() - age))

    stored(world, tmp_path)

    assert leftovers(world) == ["new"]
    (folder / "new").unlink()


def test_a_form_is_refused_with_what_to_send(world: World, tmp_path: Path) -> None:
    answer = world.http.post("/v1/demonstrations", files={"file": recorded(tmp_path)})

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert "application/octet-stream" in answer.json()["detail"]
    assert answer.headers["accept-post"] == "application/octet-stream"


def test_several_are_merged_into_one(world: World, tmp_path: Path) -> None:
    parts = [make_demonstration(lengths=(n,), seed=n) for n in (3, 2)]
    ids = [stored(world, tmp_path, part)["id"] for part in parts]

    answer = world.http.post("/v1/demonstrations:merge", json={"demonstrations": ids, "name": "all"})

    made = answer.json()
    (tmp_path / "merged.npz").write_bytes(world.http.get(f"/v1/demonstrations/{made['id']}/file").content)
    assert answer.status_code == 201
    assert (made["name"], made["transitions"], made["origin"]) == ("all", 5, {"merged": ids})
    assert read(tmp_path / "merged.npz").lengths.tolist() == [3, 2]
    assert leftovers(world) == []


def test_what_does_not_fit_is_not_merged(world: World, tmp_path: Path) -> None:
    ids = [stored(world, tmp_path, make_demonstration(make_spec(vector(n), continuous=1)))["id"] for n in (2, 3)]

    answer = world.http.post("/v1/demonstrations:merge", json={"demonstrations": ids})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_demonstration")
    assert "(3,)" in answer.json()["detail"]


def test_a_sample_is_made_by_its_seed(world: World, tmp_path: Path) -> None:
    shown = make_demonstration(lengths=(40,))
    source = stored(world, tmp_path, shown)["id"]
    path = f"/v1/demonstrations/{source}:subsample"

    made, same, other = (world.http.post(path, json={"count": 10, "seed": seed}).json() for seed in (1, 1, 2))

    (tmp_path / "sample.npz").write_bytes(world.http.get(f"/v1/demonstrations/{made['id']}/file").content)
    assert_equal(read(tmp_path / "sample.npz"), shown.subsample(10, 1))
    assert made["origin"] == {"subsampled": source, "count": 10, "seed": 1}
    assert made["sha256"] == same["sha256"] != other["sha256"]
    too_many = world.http.post(path, json={"count": 41})
    assert (too_many.status_code, too_many.json()["code"]) == (422, "invalid_demonstration")


@pytest.mark.parametrize(
    "wanted", [{"episodes": 2}, {"episodes": 2, "seed": 4}, {"every": 3}, {"episodes": 1, "every": 4, "seed": 2}]
)
def test_episodes_and_every_nth_transition_can_be_kept(world: World, tmp_path: Path, wanted: dict[str, int]) -> None:
    shown = make_demonstration(lengths=(20, 12, 8))
    source = stored(world, tmp_path, shown)["id"]

    made = world.http.post(f"/v1/demonstrations/{source}:subsample", json=wanted).json()

    (tmp_path / "part.npz").write_bytes(world.http.get(f"/v1/demonstrations/{made['id']}/file").content)
    assert_equal(read(tmp_path / "part.npz"), thin(shown, **wanted))
    assert made["origin"] == {"subsampled": source, **wanted}


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({}, "say what to keep"),
        ({"count": 3, "every": 2}, "leave one of them out"),
        ({"episodes": 0}, "must be at least 1"),
        ({"episodes": 99}, "99 complete episodes were asked for; there are"),
        ({"every": 10**12}, "must be at most 100000000"),
    ],
)
def test_a_part_that_cannot_be_is_refused(world: World, tmp_path: Path, wanted: dict[str, int], problem: str) -> None:
    source = stored(world, tmp_path)["id"]

    answer = world.http.post(f"/v1/demonstrations/{source}:subsample", json=wanted)

    assert answer.status_code == 422
    assert problem in answer.text


def test_what_is_not_there_is_a_404(world: World) -> None:
    base = f"/v1/demonstrations/{UNKNOWN}"
    answers = [
        world.http.get(base),
        world.http.get(f"{base}/file"),
        world.http.delete(base),
        world.http.post(f"{base}:subsample", json={"count": 1}),
        world.http.post("/v1/demonstrations:merge", json={"demonstrations": [UNKNOWN]}),
    ]

    assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(404, "demonstration_not_found")}


def test_a_deleted_demonstration_leaves_no_file_after_the_delay(world: World, tmp_path: Path) -> None:
    demonstration = stored(world, tmp_path)["id"]

    answer = world.http.delete(f"/v1/demonstrations/{demonstration}")

    assert (answer.status_code, answer.content) == (204, b"")
    assert world.http.get(f"/v1/demonstrations/{demonstration}").status_code == 404
    assert world.purge(purge_delay_seconds=3600) == 0
    assert leftovers(world) == [demonstration], "an older copy of the database names the file"
    assert world.purge() == 1
    assert leftovers(world) == []


# Runs that name them


def test_a_run_names_demonstrations_by_id(world: World, tmp_path: Path) -> None:
    demonstration = stored(world, tmp_path)["id"]
    run = world.create(gail(demonstration))

    refused = world.http.delete(f"/v1/demonstrations/{demonstration}")
    trainer = world.claim(run["id"])
    fetched = trainer.ledger.demonstrations()

    assert [each.id for each in fetched] == [demonstration]
    assert world.services.artifacts.size(fetched[0].path) > 0
    assert (refused.status_code, refused.json()["code"]) == (409, "demonstration_in_use")
    assert run["id"] in refused.json()["detail"]


@pytest.mark.parametrize("validate_only", [True, False])
def test_an_unknown_id_is_refused_with_its_path_before_anything_is_queued(
    world: World, tmp_path: Path, validate_only: bool
) -> None:
    demonstration = stored(world, tmp_path)["id"]
    body = {"config": gail(demonstration, UNKNOWN), "name": "never", "validate_only": validate_only}

    answer = world.http.post("/v1/runs", json=body)

    (problem,) = answer.json()["errors"]
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_config")
    assert (problem["path"], problem["code"]) == (
        "behaviors.A.reward_signals.gail.demonstrations[1]",
        "not_found",
    )
    assert UNKNOWN in problem["message"]
    assert world.http.get("/v1/runs/never").status_code == 404


def test_the_preset_of_a_clone_says_how_to_come_by_the_id_that_it_lacks(world: World, tmp_path: Path) -> None:
    preset = read_preset("clone")
    path = "behaviors.CartPole.demonstrations"

    refused = world.http.post("/v1/runs", json={"config": preset})
    demonstration = stored(world, tmp_path)["id"]
    created = world.http.post("/v1/runs", json={"config": preset, "overrides": {path: [demonstration]}})

    (problem,) = refused.json()["errors"]
    assert (refused.status_code, problem["path"], problem["code"]) == (422, f"{path}[0]", "not_found")
    assert "put in the id" in problem["message"]
    assert "`ludus demonstration upload FILE`" in problem["message"]
    assert created.status_code == 201


def test_a_path_of_a_demonstration_is_refused_over_http(world: World) -> None:
    config = {"behaviors": {"A": {"behavioral_cloning": {"demo_path": "/etc/passwd"}}}}

    answer = world.http.post("/v1/runs", json={"config": config})

    assert [(each["path"], each["code"]) for each in answer.json()["errors"]] == [
        ("behaviors.A.behavioral_cloning.demo_path", "path_refused")
    ]


def test_a_configuration_may_be_stored_before_its_demonstrations_are(world: World) -> None:
    answer = world.http.post("/v1/configs/with-demonstrations/versions", json={"config": gail(UNKNOWN)})

    assert answer.status_code == 201
    assert world.http.post("/v1/runs", json={"config_name": "with-demonstrations"}).status_code == 422


def test_warnings_about_a_configuration_are_in_the_plan_and_among_the_events(world: World) -> None:
    config = {"behaviors": {"A": {"trainer_type": "poca", "reward_signals": {"extrinsic": {}, "rnd": {}}}}}

    plan = world.http.post("/v1/runs", json={"config": config, "validate_only": True}).json()
    run = world.create(config)
    events = world.http.get(f"/v1/runs/{run['id']}/events").json()["events"]

    (warning,) = plan["warnings"]
    assert (warning["path"], warning["code"]) == ("behaviors.A.reward_signals.rnd", "doubtful")
    (doubted,) = [event for event in events if event["type"] == "config_doubted"]
    assert (doubted["level"], doubted["data"]) == ("warning", {**warning, "by": ANONYMOUS})
    assert "rnd" in doubted["message"]
