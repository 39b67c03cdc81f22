"""Runs that judge policies, over HTTP: what their checkpoints' names mean, what is refused, what is told of them."""

from typing import Any

import httpx2
import pytest

from ludus.config.run import RunConfig
from server.lifecycle.attempts import AttemptLedger
from tests.factories import claim_run, give_up, make_checkpoint, make_run, save_checkpoints
from tests.server.app.world import World

NETWORK = {"hidden_units": 48, "num_layers": 3}
CONFIG = {"behaviors": {"CartPole": {"trainer_type": "sac", "network_settings": NETWORK}}}


@pytest.fixture(scope="module")
def saved(world: World) -> list[str]:
    """Return the ids of two checkpoints of a run, oldest first."""
    return save_checkpoints(world.services.database, 100, 200, config=CONFIG)


def create(http: httpx2.Client, config: dict[str, Any]) -> httpx2.Response:
    return http.post("/v1/runs", json={"config": config})


def problems(answer: httpx2.Response) -> dict[str, str]:
    """Return the messages of a refused configuration by their paths."""
    assert answer.status_code == 422, answer.text
    return {error["path"]: error["message"] for error in answer.json()["errors"]}


def test_a_match_needs_two_names_and_gets_the_rest_from_the_candidate(http: httpx2.Client, saved: list[str]) -> None:
    http.put("/v1/aliases/champion", json={"checkpoint_id": saved[0]})

    made = create(http, {"match": {"candidate": "trained/latest", "champion": "champion"}}).json()

    match = made["config"]["match"]
    assert made["kind"] == "match"
    assert (match["candidate"], match["champion"], match["behavior"]) == (saved[1], saved[0], "CartPole")
    assert made["config"]["behaviors"]["CartPole"]["network_settings"]["hidden_units"] == 48
    assert http.get(f"/v1/runs/{made['id']}/result").json()["code"] == "assessment_not_found"


def test_an_alias_that_moves_later_changes_no_run(http: httpx2.Client, saved: list[str]) -> None:
    http.put("/v1/aliases/moving", json={"checkpoint_id": saved[0]})
    made = create(http, {"evaluate": {"checkpoint": "moving"}}).json()

    http.put("/v1/aliases/moving", json={"checkpoint_id": saved[1]})

    stored = http.get(f"/v1/runs/{made['id']}").json()
    assert (stored["kind"], stored["config"]["evaluate"]["checkpoint"]) == ("evaluate", saved[0])


@pytest.mark.parametrize(
    ("section", "path", "says"),
    [
        ({"match": {"candidate": "nobody", "champion": "trained/latest"}}, "match.candidate", "no alias 'nobody'"),
        ({"match": {"candidate": "trained/latest", "champion": "x/latest"}}, "match.champion", "no run"),
        ({"match": {"candidate": "trained/latest", "champion": "ckpt_" + "0" * 26}}, "match.champion", "no checkpoint"),
        ({"match": {"candidate": "trained/latest", "champion": "trained/latest"}}, "match.champion", "itself"),
        ({"evaluate": {"checkpoint": "trained/latest", "episodes": 0}}, "evaluate.episodes", "at least 1"),
        ({"evaluate": {"checkpoint": "trained/latest", "threshold": "nan"}}, "evaluate.threshold", "finite"),
        ({"evaluate": {"checkpoint": "trained/latest", "behavior": "Duel"}}, "evaluate.checkpoint", "has no behavior"),
        ({"evaluate": {"checkpoint": 7}}, "evaluate.checkpoint", "must be text"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(
    http: httpx2.Client, saved: list[str], section: dict[str, Any], path: str, says: str
) -> None:
    assert says in problems(create(http, section))[path]


def test_bounds_that_leave_nothing_to_decide_are_refused(http: httpx2.Client, saved: list[str]) -> None:
    named = {"candidate": saved[1], "champion": saved[0]}

    assert "greater than elo0" in problems(create(http, {"match": {**named, "elo0": 20, "elo1": 20}}))["match.elo1"]
    assert "match.alpha" in problems(create(http, {"match": {**named, "alpha": 0.5}}))


def test_a_run_judges_one_thing_and_learns_nothing(http: httpx2.Client, saved: list[str]) -> None:
    match, evaluate = {"candidate": saved[1], "champion": saved[0]}, {"checkpoint": saved[0]}

    both = problems(create(http, {"match": match, "evaluate": evaluate}))
    resumed = problems(create(http, {"match": match, "checkpoint_settings": {"resume_from": saved[0]}}))

    assert "either" in both["evaluate"]
    assert "resume_from" in resumed["match"]


def test_a_checkpoint_whose_files_are_gone_is_refused_with_its_path(world: World, http: httpx2.Client) -> None:
    database = world.services.database
    run_id = make_run(database, name="forgotten", config=CONFIG).id
    ledger = AttemptLedger(database, claim_run(database, run_id))
    gone = ledger.checkpoints.add(make_checkpoint(100, path="runs/b/100"))
    give_up(database, gone)

    assert "removed by retention" in problems(create(http, {"evaluate": {"checkpoint": gone}}))["evaluate.checkpoint"]


def test_results_are_told_as_they_were_written_and_survive_the_attempt(
    world: World, http: httpx2.Client, saved: list[str]
) -> None:
    made = create(http, {"evaluate": {"checkpoint": saved[0], "episodes": 4}}).json()
    ledger = world.claim(made["id"]).ledger
    result = {
        "kind": "evaluate",
        "verdict": None,
        "behavior": "CartPole",
        "checkpoint": saved[0],
        "episodes": 2,
        "wanted": 4,
        "seeded": False,
        "mean": 1.5,
        "low": 1.0,
        "high": 2.0,
        "confidence": 0.95,
        "deviation": 0.5,
        "least": 1.0,
        "most": 2.0,
        "mean_length": 7.0,
        "threshold": None,
    }

    ledger.assessment.store(2, result, {"returns": [1.0, 2.0]})
    ledger.assessment.store(2, result, {"returns": [1.0, 2.0]})  # a repetition counts nothing twice

    shown = http.get(f"/v1/runs/{made['id']}/result").json()
    assert shown["result"] == result
    assert list(shown["checkpoint_runs"]) == [saved[0]]
    assert ledger.assessment.state() == {"returns": [1.0, 2.0]}
    config = RunConfig.model_validate(http.get(f"/v1/runs/{made['id']}").json()["config"])
    policy = ledger.assessment.policies(config)[saved[0]]
    assert policy.trainer_type == "sac"
    assert policy.network_settings.num_layers == 3
