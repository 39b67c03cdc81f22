"""The objective of an experiment may become any other one while nothing has been compared by it."""

from itertools import permutations
from typing import Any

import pytest

from tests.factories import save_checkpoints
from tests.server.app.world import World
from tests.server.lifecycle.experiments.played import begin, body

PATCH = {"Content-Type": "application/merge-patch+json"}
CHAMPION = "the checkpoint of the test"
KINDS: dict[str, dict[str, Any]] = {
    "metric": {"metric": "Environment/Cumulative Reward", "last": 3},
    "evaluate": {"evaluate": {"episodes": 3}},
    "match": {"match": {"champion": CHAMPION}},
    "rating": {"rating": "ordinal"},
}


@pytest.fixture
def kinds(world: World) -> dict[str, dict[str, Any]]:
    (champion,) = save_checkpoints(world.services.database, 1000)
    return {**KINDS, "match": {"match": {"champion": champion}}}


def change(world: World, name: str, objective: dict[str, Any]) -> Any:
    return world.http.patch(f"/v1/experiments/{name}", json={"objective": objective}, headers=PATCH)


def test_every_kind_of_objective_becomes_every_other_one_while_no_trial_has_a_value(
    world: World, kinds: dict[str, dict[str, Any]]
) -> None:
    for kind, other in permutations(kinds, 2):
        name = f"{kind}-{other}"
        world.http.post("/v1/experiments", json=body(name, objective=kinds[kind])).raise_for_status()

        changed = change(world, name, kinds[other])

        assert changed.status_code == 200, (name, changed.text)
        objective = changed.json()["spec"]["objective"]
        assert {key: objective[key] for key in kinds[other]} == kinds[other], name
        sources = {source for source in ("evaluate", "match", "rating") if objective[source] is not None}
        assert sources == {other} - {"metric"}, "and is nothing of the former one"


def test_no_kind_of_objective_becomes_another_one_once_trials_have_values(
    world: World, kinds: dict[str, dict[str, Any]]
) -> None:
    played = begin(world, body("valued", budget={"runs": 1}))
    played.play()

    for kind, objective in kinds.items():
        refused = change(world, "valued", objective)

        (problem,) = refused.json()["errors"]
        assert (refused.status_code, problem["path"]) == (422, "objective"), kind
        assert problem["message"] == "cannot change: trials have values by the present one; begin another experiment"
    assert change(world, "valued", played.get()["spec"]["objective"]).status_code == 200, "to itself"


@pytest.mark.long
@pytest.mark.parametrize("fields", [{"seeds": 3, "budget": {"runs": 3}}, {"early_stopping": {"min_steps": 1000}}])
def test_values_of_a_trial_that_still_runs_are_not_mixed_with_those_of_another_objective(
    world: World, fields: dict[str, Any]
) -> None:
    played = begin(world, body("half", **fields))
    while not any(run["value"] for trial in played.trials() for run in trial["runs"]) and not any(
        trial["reports"] for trial in played.trials()
    ):
        played.turn()
    assert played.get()["trials"] == {"RUNNING": 1}

    refused = change(world, "half", {"metric": "Losses/Value Loss", "mode": "min"})

    assert refused.status_code == 422, refused.text


@pytest.mark.parametrize(
    ("objective", "path", "words"),
    [
        ({"match": {"champion": "nobody"}}, "objective.match.champion", "nobody"),
        ({"evaluate": {"episodez": 3}}, "objective.evaluate.episodez", "is not known here"),
    ],
)
def test_a_wrong_objective_is_refused_when_it_is_set_and_not_after_the_first_run(
    world: World, objective: dict[str, Any], path: str, words: str
) -> None:
    world.http.post("/v1/experiments", json=body("checked")).raise_for_status()

    refused = change(world, "checked", objective)

    (problem,) = refused.json()["errors"]
    assert (refused.status_code, problem["path"]) == (422, path)
    assert words in problem["message"]
    assert world.http.get("/v1/experiments/checked").json()["spec"]["objective"]["match"] is None


def test_an_evaluation_that_is_under_way_ends_with_its_objective(world: World) -> None:
    played = begin(world, body("judged", objective={"evaluate": {"episodes": 3}}, budget={"runs": 1}), saves=True)
    assessments: list[str] = []
    while not assessments:
        played.turn()
        while played.controller.tick()["experiments"]:
            pass
        assessments = [
            run["assessment_id"] for trial in played.trials() for run in trial["runs"] if run["assessment_id"]
        ]

    assert change(world, "judged", {"metric": "reward"}).status_code == 200
    while played.controller.tick()["experiments"]:
        pass

    assert played.get()["trials"] == {"COMPLETE": 1}
    assert world.http.get(f"/v1/runs/{assessments[0]}").json()["state"] in {"SUCCEEDED", "CANCELLED"}
