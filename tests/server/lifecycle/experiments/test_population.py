"""The arithmetic of population based training, and a population of 16 on simulated curves that is killed on the way."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.lifecycle.experiments.population import Member, best_members, explored, gives_up
from server.lifecycle.experiments.requests import Parameter, Population
from tests.server.app.world import World
from tests.server.lifecycle.experiments.fleet import CONFIG, EPOCHS, LR, Fleet, learns_at_a_falling_rate
from tests.server.lifecycle.experiments.played import TURNS, begin, body

RULE = Population(members=4, interval=1000)
PARAMETERS: Mapping[str, Parameter] = {
    LR: Parameter(min=1e-5, max=1e-1, scale="log"),
    EPOCHS: Parameter(min=1, max=10),
    "gamma": Parameter(values=[0.9, 0.95, 0.99]),
    "size": Parameter(min=32, max=128, step=32),
}


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40), st.sampled_from([0.1, 0.25, 0.5]))
def test_the_worst_share_gives_up_and_never_one_of_the_best(values: list[float], quantile: float) -> None:
    members = [Member(number, value) for number, value in enumerate(values)]

    losers = [number for number in range(len(values)) if gives_up(number, members, quantile)]

    assert len(losers) <= len(values) * quantile
    assert {member.number for member in best_members(members, quantile)[:1]}.isdisjoint(losers)
    assert all(values[number] < max(values) for number in losers)
    stay = [value for number, value in enumerate(values) if number not in losers]
    assert all(values[number] <= min(stay) or values[number] in stay for number in losers)


@given(st.integers(0, 2**32), st.floats(0, 1))
def test_an_explored_setting_lies_in_the_space_and_is_one_step_away(seed: int, resample: float) -> None:
    rule = RULE.model_copy(update={"resample": resample})
    setting = {LR: 1e-3, EPOCHS: 3, "gamma": 0.95, "size": 64}

    child = explored(setting, PARAMETERS, rule, np.random.default_rng(seed))

    assert all(PARAMETERS[path].holds(value) for path, value in child.items()), child
    if resample == 0:
        assert min(abs(child[LR] / 1e-3 - factor) for factor in RULE.factors) < 1e-9
        assert child[EPOCHS] in {2, 4}
        assert child["gamma"] in {0.9, 0.99}
        assert child["size"] in {32, 96}


def test_a_value_at_the_end_of_its_range_stays_inside() -> None:
    setting = {LR: 1e-1, EPOCHS: 10, "gamma": 0.99, "size": 128}

    for seed in range(50):
        child = explored(setting, PARAMETERS, RULE, np.random.default_rng(seed))
        assert all(PARAMETERS[path].holds(value) for path, value in child.items()), child


FACTORS = [0.5, 2.0]
SUMMARY = 300


def population(name: str, **fields: Any) -> dict[str, Any]:
    rule = {"members": 16, "interval": SUMMARY, "resample": 0.0, "factors": FACTORS}
    config = {"behaviors": {"CartPole": {**CONFIG["behaviors"]["CartPole"], "checkpoint_interval": SUMMARY}}}
    return body(name, population=rule, budget={}, sampler="random", baseline=False, config=config, **fields)


@pytest.mark.long
def test_a_population_of_16_survives_kills_and_beats_every_fixed_setting(world: World) -> None:
    """The best rate falls while training goes on, so that no fixed one can be right all the time."""
    played = begin(world, population("pbt"), learner=learns_at_a_falling_rate, summary=SUMMARY)

    for turn in range(TURNS):
        played.restart()  # each round by another controller
        played.turn()
        if turn % 7 == 3:
            played.fleet.kill_one()  # a member's worker dies; another one goes on from its checkpoint
        if played.get()["state"] == "FINISHED":
            break

    experiment, trials = played.get(), played.trials()
    assert experiment["detail"] == "All members have trained."
    assert experiment["trials"]["COMPLETE"] == 16
    assert experiment["trials"]["PRUNED"] == len(trials) - 16 > 0
    assert played.most <= 16 + experiment["trials"]["PRUNED"]
    children = [trial for trial in trials if trial["parent"] is not None]
    assert len(children) == experiment["trials"]["PRUNED"], "who gives up is replaced"
    for child in children:
        parent = trials[child["parent"]]
        factor = child["parameters"][LR] / parent["parameters"][LR]
        assert min(abs(factor - given) for given in FACTORS) < 1e-9
        config = world.http.get(f"/v1/runs/{child['runs'][0]['run_id']}").json()["config"]
        assert config["checkpoint_settings"]["resume_from"] in played.fleet.checkpoints[parent["runs"][0]["run_id"]]
    assert experiment["best"]["value"] > 1.2 * max(
        Fleet.fixed(learns_at_a_falling_rate, rate, SUMMARY) for rate in np.geomspace(1e-5, 1e-1, 50)
    )


@pytest.mark.long
def test_a_population_that_was_stopped_begins_anew_when_it_is_resumed(world: World) -> None:
    played = begin(world, population("again"), learner=learns_at_a_falling_rate, summary=SUMMARY)
    played.turn()
    world.http.post("/v1/experiments/again:stop").raise_for_status()
    played.turn()
    world.http.post("/v1/experiments/again:resume").raise_for_status()

    experiment = played.play()

    assert experiment["trials"]["COMPLETE"] == 16
    assert experiment["trials"]["STOPPED"] == 16
    assert experiment["detail"] == "All members have trained. 16 trials were stopped before their end."


@pytest.mark.long
def test_a_member_that_fails_is_replaced_by_a_copy_of_one_of_the_best(world: World) -> None:
    played = begin(world, population("fails", seed=5), learner=learns_at_a_falling_rate, summary=SUMMARY)
    played.turn()
    played.turn()
    played.turn()
    member = next(trial for trial in played.trials() if trial["state"] == "RUNNING")
    run = world.http.get(f"/v1/runs/{member['runs'][0]['run_id']}").json()
    played.fleet.fails = lambda config: config["seed"] == run["seed"]

    experiment = played.play()

    assert experiment["trials"]["FAILED"] == 1
    assert experiment["trials"]["COMPLETE"] == 16
    assert world.http.get(f"/v1/runs/{run['id']}").json()["state"] == "FAILED"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"population": {"members": 1, "interval": 10}}, "must be at least 2"),
        ({"population": {"members": 4}}, "is missing"),
        ({"population": {"members": 4, "interval": 10, "quantile": 0.6}}, "must be at most 0.5"),
        ({"population": {"members": 4, "interval": 10}, "seeds": 2}, "leave seeds, early_stopping and evaluate out"),
        (
            {
                "population": {"members": 4, "interval": 10},
                "parameters": {"behaviors.CartPole.network_settings.hidden_units": {"values": [32, 64]}},
            },
            "whose members copy weights, and varies behaviors.CartPole.network_settings.hidden_units",
        ),
    ],
)
def test_a_wrong_population_is_refused(world: World, changes: dict[str, Any], words: str) -> None:
    answer = world.http.post("/v1/experiments", json={**body("wrong"), "config": CONFIG, **changes})

    assert answer.status_code == 422, answer.text
    assert any(words in item["message"] for item in answer.json()["errors"]), answer.text
