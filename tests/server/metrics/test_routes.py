"""Metrics over HTTP: series of one run and of several, windows, and answers that cost nothing while nothing changes."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.server.app.world import Trainer, World, open_world

REWARD = "Environment/Cumulative Reward"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("metrics")) as world:
        yield world


def trained(world: World, name: str, values: list[float], **fields: object) -> Trainer:
    """Create a run that has recorded the reward at steps 100, 200, ..."""
    trainer = world.claim(world.create(name=name)["id"]).start()
    trainer.measure(REWARD, values)
    return trainer


def asked(answer: httpx2.Response) -> list[dict[str, object]]:
    assert answer.status_code == 200, answer.text
    series: list[dict[str, object]] = answer.json()["series"]
    return series


def test_a_window_is_thinned_inside_and_its_ends_belong_to_it(world: World) -> None:
    run = trained(world, "window", [float(number) for number in range(100)]).run_id

    (series,) = asked(
        world.http.get(
            f"/v1/runs/{run}/metrics/series", params={"key": REWARD, "points": 2, "from_step": 1000, "to_step": 1300}
        )
    )

    assert (series["steps"], series["values"], series["counts"]) == ([1100, 1300], [9.5, 11.5], [2, 2])
    assert series["run_id"] == run


def test_a_window_and_a_step_to_go_on_from_are_both_kept(world: World) -> None:
    run = trained(world, "going-on", [float(number) for number in range(10)]).run_id

    (series,) = asked(
        world.http.get(
            f"/v1/runs/{run}/metrics/series", params={"key": REWARD, "after_step": 300, "to_step": 600, "points": 2}
        )
    )

    assert series["steps"] == [400, 500], "as recorded"


def test_many_series_come_in_one_answer_with_the_same_steps(world: World) -> None:
    first = trained(world, "many-1", [1.0, 2.0, 3.0, 4.0])
    second = trained(world, "many-2", [10.0, 20.0])
    second.measure("Policy/Entropy", [0.5])

    series = asked(
        world.http.get(
            "/v1/series",
            params={"runs": ["many-2", first.run_id], "keys": [REWARD, "Policy/Entropy"], "common_steps": True},
        )
    )

    assert [(each["run_id"], each["key"]) for each in series] == [
        (second.run_id, REWARD),
        (second.run_id, "Policy/Entropy"),
        (first.run_id, REWARD),
    ]
    assert {tuple(each["steps"]) for each in series} == {(100, 200, 300, 400)}  # type: ignore[arg-type]  # JSON
    assert series[0]["values"] == [10.0, 20.0, None, None]
    assert series[0]["counts"] == [1, 1, 0, 0]
    assert series[0]["times"][2:] == [None, None]  # type: ignore[index]  # JSON
    assert series[2]["values"] == [1.0, 2.0, 3.0, 4.0]


def test_a_run_that_is_named_twice_counts_once(world: World) -> None:
    run = trained(world, "twice", [1.0]).run_id

    assert len(asked(world.http.get("/v1/series", params={"runs": ["twice", run], "keys": REWARD}))) == 1


def test_a_run_without_the_metric_has_no_series_and_an_unknown_run_is_said(world: World) -> None:
    run = world.create(name="silent")["id"]

    assert asked(world.http.get("/v1/series", params={"runs": run, "keys": REWARD})) == []
    answer = world.http.get("/v1/series", params={"runs": [run, "nobody"], "keys": REWARD})
    assert (answer.status_code, answer.json()["code"]) == (404, "run_not_found")
    assert "nobody" in answer.json()["detail"]


def test_more_series_than_an_answer_may_have_are_refused_with_their_number(world: World) -> None:
    trainer = trained(world, "broad", [1.0])
    keys = [f"key {number}" for number in range(150)]
    for behavior in ("One", "Two"):
        for key in keys:
            trainer.measure(key, [1.0], behavior)

    answer = world.http.get("/v1/series", params={"runs": "broad", "keys": keys})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_query")
    assert "300 series, more than 200" in answer.json()["detail"]
    assert len(asked(world.http.get("/v1/series", params={"runs": "broad", "keys": keys, "behavior": "One"}))) == 150


def test_an_answer_that_has_not_changed_has_no_body(world: World) -> None:
    trainer = trained(world, "quiet", [1.0])
    trained(world, "ended", [1.0]).finish()  # of one that waits for simulators, the answer says for how many seconds
    metrics = f"/v1/runs/{trainer.run_id}/metrics"
    paths = ("/v1/runs?filter=name = ended", "/v1/runs/ended", "/v1/workers", "/v1/aliases", metrics)
    tags = {path: world.http.get(path).headers["etag"] for path in paths}

    for path, tag in tags.items():
        again = world.http.get(path, headers={"If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), path
        assert again.headers["cache-control"] == "private, no-cache"
    trainer.measure(REWARD, [2.0], first=200)
    changed = world.http.get(metrics, headers={"If-None-Match": tags[metrics]})
    assert changed.status_code == 200
    assert changed.json()["metrics"][0]["value"] == 2.0
    assert changed.headers["etag"] != tags[metrics]


def test_a_refusal_has_no_etag(world: World) -> None:
    assert "etag" not in world.http.get("/v1/runs/nobody").headers
