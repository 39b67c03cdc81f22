"""Several runs side by side: the keys in which they differ, their numbers, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.app.world import World, open_world

REWARD = "Environment/Cumulative Reward"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("comparison")) as world:
        yield world


def config(behavior: str = "CartPole", **section: Any) -> dict[str, Any]:
    return {"behaviors": {behavior: {"trainer_type": "ppo", **section}}, "seed": 1}


def compare(world: World, *runs: str, **query: Any) -> dict[str, Any]:
    answer = world.http.get("/v1/runs:compare", params={"runs": runs, **query})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_the_keys_that_differ_come_with_the_value_of_each_run_and_null_where_it_has_none(world: World) -> None:
    world.create(config(hyperparameters={"batch_size": 64, "buffer_size": 640}), name="plain")
    world.create(config(hyperparameters={"batch_size": 128, "buffer_size": 640}), name="large")
    signals = {"extrinsic": {}, "rnd": {"strength": 0.5}}
    world.create(config(hyperparameters={"batch_size": 64, "buffer_size": 640}, reward_signals=signals), name="curious")

    found = compare(world, "plain", "large", "curious")

    assert [run["name"] for run in found["runs"]] == ["plain", "large", "curious"]
    differing = {each["path"]: each["values"] for each in found["differing"]}
    assert differing["behaviors.CartPole.hyperparameters.batch_size"] == [64, 128, 64]
    assert differing["behaviors.CartPole.reward_signals.rnd.strength"] == [None, None, 0.5]
    assert all(path.startswith("behaviors.CartPole.reward_signals.rnd.") for path in list(differing)[1:])


def test_a_key_with_a_dot_in_it_is_quoted_and_a_list_is_one_value(world: World) -> None:
    world.create(config("a.b", max_steps=10), name="dotted-1")
    world.create(config("a.b", max_steps=20) | {"checkpoint_settings": {}}, name="dotted-2")

    found = compare(world, "dotted-1", "dotted-2")

    assert found["differing"] == [{"path": 'behaviors."a.b".max_steps', "values": [10, 20]}]


def test_each_run_comes_once_by_id_or_name_with_the_wanted_numbers(world: World, tmp_path: Path) -> None:
    first = world.claim(world.create(name="measured")["id"]).start()
    first.measure(REWARD, [1.0, 3.0, 2.0])
    first.measure("Policy/Entropy", [0.5])
    second = world.create(name="waits")["id"]

    found = compare(world, second, "measured", first.run_id, metrics=[REWARD, f"{REWARD}@max"])

    assert [run["id"] for run in found["runs"]] == [second, first.run_id]
    assert [run["metrics"] for run in found["runs"]] == [
        {REWARD: None, f"{REWARD}@max": None},
        {REWARD: 2.0, f"{REWARD}@max": 3.0},
    ]
    assert found["metric_keys"] == [REWARD, "Policy/Entropy"]
    assert found["runs"][1]["state"] == "RUNNING"
    assert "config" not in found["runs"][0]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({}, 422, "invalid_request"),
        ({"runs": ["nobody"]}, 404, "run_not_found"),
        ({"runs": [f"r{number}" for number in range(201)]}, 422, "invalid_request"),
        ({"runs": ["plain"], "metrics": ["reward@mean"]}, 422, "invalid_query"),
    ],
    ids=["no run", "unknown run", "too many", "no metric"],
)
def test_what_cannot_be_compared_is_refused(world: World, query: dict[str, Any], status: int, code: str) -> None:
    world.create(name="plain")

    answer = world.http.get("/v1/runs:compare", params=query)

    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
