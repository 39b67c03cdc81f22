"""The curve of a run that continues others: one series, cut at the checkpoints that were taken over."""

from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
import pytest

from ludus.client import Client
from server.checkpoints.repository import MAX_PREDECESSORS
from server.kit.settings import MetricsSettings
from server.metrics.jobs import MetricRetention
from server.metrics.points import MetricPoint
from tests.factories import make_checkpoint, pack_metrics
from tests.server.app.world import CARTPOLE, Trainer, World, open_world
from tests.statements import selected

REWARD = "Environment/Cumulative Reward"
JOINED = {"keys": REWARD, "with_predecessors": True}
TWO: dict[str, Any] = {"behaviors": {"CartPole": {}, "Other": {}}}


@pytest.fixture
def world(tmp_path: Any) -> Iterator[World]:
    with open_world(tmp_path / "server") as world:
        yield world


def begin(world: World, name: str, checkpoint: str | None = None, config: Mapping[str, Any] = CARTPOLE) -> Trainer:
    """Create a run that trains, from a checkpoint of another run."""
    settings = {} if checkpoint is None else {"checkpoint_settings": {"resume_from": checkpoint}}
    return world.claim(world.create({**config, **settings}, name=name)["id"]).start()


def save(trainer: Trainer, **steps: int) -> str:
    """Save a checkpoint at these steps of behaviors; return its id."""
    total = sum(steps.values())
    path = f"runs/{trainer.run_id}/1/checkpoints/{'-'.join(map(str, steps.values()))}"
    return trainer.ledger.checkpoints.add(make_checkpoint(total, steps=steps, path=path))


def asked(world: World, **parameters: Any) -> list[dict[str, Any]]:
    answer = world.http.get("/v1/series", params={**JOINED, **parameters})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["series"])


def curve(world: World, run: str, **parameters: Any) -> dict[int, float]:
    """Return the only series of a run: values by step."""
    (series,) = asked(world, runs=run, **parameters)
    assert series["run_id"] == world.http.get(f"/v1/runs/{run}").json()["id"]
    return dict(zip(series["steps"], series["values"], strict=True))


def three(world: World) -> list[Trainer]:
    """Have a run of 500 steps continued at step 300 by a second one, and that at step 500 by a third one."""
    first = begin(world, "first")
    first.measure(REWARD, [1.0, 2.0, 3.0, 4.0, 5.0])
    taken = save(first, CartPole=300)
    first.finish()
    second = begin(world, "second", taken)
    second.measure(REWARD, [40.0, 50.0, 60.0], first=400)
    taken = save(second, CartPole=500)
    second.finish()
    third = begin(world, "third", taken)
    third.measure(REWARD, [600.0], first=600)
    return [first, second, third]


CURVE = {100: 1.0, 200: 2.0, 300: 3.0, 400: 40.0, 500: 50.0, 600: 600.0}
"""Of the third run, with its predecessors."""


def test_a_run_is_one_curve_with_those_before_it_without_what_they_did_beyond_the_checkpoints(world: World) -> None:
    three(world)

    assert curve(world, "third") == CURVE
    assert curve(world, "second") == {100: 1.0, 200: 2.0, 300: 3.0, 400: 40.0, 500: 50.0, 600: 60.0}
    assert curve(world, "first") == {100: 1.0, 200: 2.0, 300: 3.0, 400: 4.0, 500: 5.0}


def test_without_the_parameter_a_run_has_its_own_points_alone(world: World) -> None:
    three(world)

    assert curve(world, "third", with_predecessors=False) == {600: 600.0}


def test_the_client_and_the_series_of_one_run_join_alike(world: World) -> None:
    three(world)

    with Client(world.server) as client:
        (one,) = client.metrics.series("third", "reward", with_predecessors=True)
        (compared,) = client.metrics.compare(["third"], ["reward"], with_predecessors=True)
        (own,) = client.metrics.series("third", "reward")

    assert dict(zip(one.steps, one.values, strict=True)) == CURVE
    assert (compared.steps, compared.values) == (one.steps, one.values)
    assert (one.total, own.total) == (6, 1)


def test_windows_steps_to_go_on_from_and_smoothing_see_the_whole_curve(world: World) -> None:
    three(world)
    path = "/v1/runs/third/metrics/series"

    assert curve(world, "third", from_step=200, to_step=400) == {200: 2.0, 300: 3.0, 400: 40.0}
    page = world.http.get(path, params={"key": REWARD, "with_predecessors": True, "after_step": 200, "points": 2})
    assert page.json()["series"][0]["steps"] == [300, 400]
    (windowed,) = asked(world, runs="third", smoothing=0.5, from_step=600)
    (whole,) = asked(world, runs="third", smoothing=0.5)
    assert windowed["smoothed"] == whole["smoothed"][-1:]


def test_compared_with_each_other_each_of_them_is_the_curve_that_led_to_it(world: World) -> None:
    runs = [trainer.run_id for trainer in three(world)]

    series = asked(world, runs=runs, common_steps=True)

    assert [each["run_id"] for each in series] == runs
    assert {tuple(each["steps"]) for each in series} == {(100, 200, 300, 400, 500, 600)}
    assert [each["values"] for each in series] == [
        [1.0, 2.0, 3.0, 4.0, 5.0, None],
        [1.0, 2.0, 3.0, 40.0, 50.0, 60.0],
        list(CURVE.values()),
    ]


def test_each_behavior_is_cut_at_its_own_step_and_one_that_the_checkpoint_lacks_begins_anew(world: World) -> None:
    first = begin(world, "two", config=TWO)
    first.measure(REWARD, [1.0, 2.0, 3.0])
    first.measure(REWARD, [10.0, 20.0, 30.0], "Other")
    first.ledger.metrics.append([MetricPoint("", REWARD, step, 1000.0, 0.1) for step in (200, 300, 400)])
    both, one = save(first, CartPole=200, Other=100), save(first, CartPole=300)
    begin(world, "both", both, TWO)
    other = begin(world, "one", one, TWO)
    other.measure(REWARD, [7.0], "Other")

    def steps(run: str) -> dict[str, list[int]]:
        return {each["behavior"]: each["steps"] for each in asked(world, runs=run)}

    assert steps("both") == {"": [200, 300], "CartPole": [100, 200], "Other": [100]}, "before its first summary, too"
    assert steps("one") == {"": [200, 300], "CartPole": [100, 200, 300], "Other": [100]}
    assert [each["values"] for each in asked(world, runs="one", behavior="Other")] == [[7.0]]


def test_a_run_that_begins_with_the_networks_of_another_one_or_only_plays_is_no_continuation(world: World) -> None:
    first = begin(world, "taught")
    first.measure(REWARD, [1.0])
    taken = save(first, CartPole=100)
    initialized = {"behaviors": {"CartPole": {**CARTPOLE["behaviors"]["CartPole"], "initialize_from": taken}}}
    begin(world, "initialized", config=initialized).measure(REWARD, [2.0])
    played = {**CARTPOLE, "checkpoint_settings": {"resume_from": taken, "inference": True}}
    begin(world, "played", config=played).measure(REWARD, [3.0], first=200)

    for name, points in {"initialized": {100: 2.0}, "played": {200: 3.0}}.items():
        assert curve(world, name) == points
        assert world.http.get(f"/v1/runs/{name}").json()["continues"] is None
    assert world.http.get("/v1/runs/taught").json()["continued_by"] == []


def test_a_run_names_the_one_that_it_continues_and_those_that_continue_it(world: World) -> None:
    first, second, third = three(world)
    fork = begin(world, "fork", world.http.get("/v1/runs/first/checkpoints").json()["checkpoints"][0]["id"])

    links = {name: world.http.get(f"/v1/runs/{name}").json() for name in ("first", "second", "third", "fork")}

    assert {name: (run["continues"], run["continued_by"]) for name, run in links.items()} == {
        "first": (None, [second.run_id, fork.run_id]),
        "second": (first.run_id, [third.run_id]),
        "third": (second.run_id, []),
        "fork": (first.run_id, []),
    }


def test_a_run_that_has_no_checkpoint_of_its_own_yet_names_the_run_that_has_one(world: World) -> None:
    _, second, _ = three(world)

    answer = world.http.get("/v1/runs/third/checkpoints/latest")

    assert (answer.status_code, answer.json()["code"]) == (404, "checkpoint_not_found")
    assert f"It continues {second.run_id}, which has the checkpoint" in answer.json()["detail"]


def test_a_predecessor_whose_metrics_are_in_a_file_is_read_from_it(world: World) -> None:
    three(world)
    pack_metrics(world.services.database)
    settings = MetricsSettings.model_validate({"archive_days": 1e-12})
    job = MetricRetention(world.services.database, world.services.artifacts, settings)

    assert job.archive() == 2

    assert curve(world, "third") == CURVE


def test_a_predecessor_stays_while_its_points_are_needed_and_one_that_went_leaves_the_rest(world: World) -> None:
    first, second, third = three(world)
    refused = world.http.delete(f"/v1/runs/{first.run_id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "run_in_use")

    third.finish()
    for run in (third, second, first):
        assert world.http.delete(f"/v1/runs/{run.run_id}").status_code == 204

    assert world.http.get("/v1/series", params={"runs": third.run_id, **JOINED}).status_code == 404


def test_a_chain_is_read_with_a_statement_for_each_generation_and_once_for_a_request(world: World) -> None:
    three(world)

    def statements(runs: str, **parameters: Any) -> list[str]:
        with selected(world.services.database) as statements:
            asked(world, runs=runs, **parameters)
        return [sql for sql in statements if "run_initial_checkpoints" in sql]

    assert [len(statements(run)) for run in ("first", "second", "third")] == [1, 2, 3]
    assert statements("third", with_predecessors=False) == []
    columns = "SELECT runs.id, checkpoints.run_id, checkpoints.step, checkpoints.steps "
    assert {" ".join(sql.partition("FROM")[0].split()) + " " for sql in statements("third")} == {columns}


@pytest.mark.long
def test_a_curve_has_the_points_of_at_most_16_predecessors(world: World) -> None:
    checkpoint = None
    for number in range(MAX_PREDECESSORS + 3):
        run = begin(world, f"run-{number}", checkpoint)
        run.measure(REWARD, [float(number)], first=100 * (number + 1))
        checkpoint = save(run, CartPole=100 * (number + 1))
        run.finish()
    first = 2  # the 17th before the newest one, number 18, is number 1

    points = {100 * (number + 1): float(number) for number in range(first, MAX_PREDECESSORS + 3)}

    assert curve(world, f"run-{MAX_PREDECESSORS + 2}") == points
    both = asked(world, runs=[f"run-{MAX_PREDECESSORS + 2}", "run-5"])
    assert [series["steps"] for series in both] == [list(points), [100, 200, 300, 400, 500, 600]]


def test_the_series_of_predecessors_count_as_those_that_are_read(world: World) -> None:
    third = three(world)[-1]
    keys = [f"key {number}" for number in range(150)]
    third.ledger.metrics.append([MetricPoint("CartPole", key, 550, 1000.0, 1.0) for key in keys])
    fourth = begin(world, "fourth", save(third, CartPole=600))
    fourth.ledger.metrics.append([MetricPoint("CartPole", key, 700, 1000.0, 2.0) for key in keys])

    def answer(*runs: str) -> httpx2.Response:
        return world.http.get("/v1/series", params={"runs": runs, "keys": keys, "with_predecessors": True})

    assert [series["steps"] for series in answer("third").json()["series"]] == [[550]] * 150
    refusal = "they have 300 series, those of their predecessors among them, more than 200"
    assert refusal in answer("fourth").json()["detail"]
    assert refusal in answer("third", "fourth").json()["detail"], "what both have is read once"
    keys = keys[:100]
    assert [series["steps"] for series in answer("fourth").json()["series"]] == [[550, 700]] * 100


def test_other_requests_refuse_the_parameter(world: World) -> None:
    three(world)

    for path in ("/v1/runs/third/metrics", "/v1/runs/third", "/v1/runs/third/metrics.parquet"):
        answer = world.http.get(path, params={"with_predecessors": "true"})
        assert answer.status_code == 422, path
        assert "with_predecessors" in answer.text
