"""Experiments over self-play runs that are compared by their ratings on a ladder that they share."""

from typing import Any

import numpy as np
import pytest

from ludus.json_values import JsonObject
from server.ladders.ratings import RatingJob
from server.ladders.refs import Outcome, PlayedMatch, PlayedParticipant
from server.lifecycle.attempts import AttemptLedger
from tests.server.app.world import World
from tests.server.ladders.played import rate_all
from tests.server.lifecycle.experiments.fleet import CONFIG, LR
from tests.server.lifecycle.experiments.played import TURNS, Played, begin, body

SUMMARY, GAMES = 1000, 30
RULE = {"members": 6, "interval": SUMMARY, "resample": 0.0, "factors": [0.5, 2.0]}
SELF_PLAY = {"ladder": "league", "save_steps": SUMMARY}
SECTION = {**CONFIG["behaviors"]["CartPole"], "checkpoint_interval": SUMMARY, "self_play": SELF_PLAY}


def learns_at_one_rate(config: JsonObject, skill: float, _step: int) -> float:
    """Learn the faster the nearer the rate is to 1e-3: skill is in points of Elo, up to 100 more in each summary."""
    rate = config["behaviors"]["CartPole"]["hyperparameters"]["learning_rate"]
    return float(skill + 100.0 / (1.0 + np.log10(rate / 1e-3) ** 2))


class Matches:
    """Matches of learning policies against a champion that all runs meet: its skill is 200, and nothing tells them."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(7)
        self._played: dict[str, int] = {}

    def play(self, ledger: AttemptLedger, run_id: str, step: int, skill: float) -> None:
        """Play the matches of a summary."""
        sides = (
            PlayedParticipant("CartPole", 0, None, step),
            PlayedParticipant("CartPole", 1, None, 0, scripted="champion"),
        )
        first = self._played.get(run_id, 0) + 1
        self._played[run_id] = first + GAMES - 1
        matches = []
        for number in range(first, first + GAMES):
            wins = self._random.random() < 1.0 / (1.0 + 10.0 ** ((200.0 - skill) / 400.0))
            outcome: Outcome = "win" if wins else "loss"
            played: dict[str, Any] = {
                "number": number,
                "behavior": "CartPole",
                "simulator": 0,
                "at": 1000.0 + step,
                "step": step,
            }
            matches.append(
                PlayedMatch(**played, participants=sides, outcome=outcome, truncated=False, rated=True, elo=1200.0)
            )
        ledger.matches.append(matches)


def start(world: World, section: dict[str, Any] = SECTION, **fields: Any) -> Played:
    world.http.post("/v1/ladders", json={"name": "league"}).raise_for_status()
    fields = {"config": {"behaviors": {"CartPole": section}}, "sampler": "random", "baseline": False, **fields}
    return begin(world, body("rated", **fields), learner=learns_at_one_rate, summary=SUMMARY, plays=Matches().play)


def rating_of(world: World, trial: dict[str, Any]) -> dict[str, Any]:
    """Return the standing of a trial's policy on the ladder."""
    standings = world.http.get("/v1/ladders/league/ratings").json()["ratings"]
    name = f"rated-{trial['number']}-0/CartPole"
    return next(standing for standing in standings if standing["name"] == name)


@pytest.mark.long
def test_a_population_is_compared_by_its_ratings_on_the_shared_ladder(world: World) -> None:
    played = start(world, population=RULE, budget={}, objective={"rating": "ordinal", "last": 1})

    for _ in range(TURNS):
        played.turn()
        rate_all(world.services.database)
        if played.get()["state"] != "RUNNING":
            break

    experiment, trials = played.get(), played.trials()
    assert experiment["detail"] == "All members have trained."
    children = [trial for trial in trials if trial["parent"] is not None]
    first, last = ([abs(np.log10(trial["parameters"][LR] / 1e-3)) for trial in part] for part in (trials[:6], children))
    assert np.mean(last) < np.mean(first), "settings near the one that learns best are copied"
    best = experiment["best"]
    assert best["value"] == pytest.approx(rating_of(world, best)["ordinal"])
    skills = {trial["number"]: played.fleet.skills[trial["runs"][0]["run_id"]] for trial in trials}
    assert skills[best["number"]] > 0.9 * max(skills.values())


def test_a_trial_has_its_value_once_all_of_its_matches_are_rated(world: World) -> None:
    played = start(world, budget={"runs": 2}, parallelism=2, objective={"rating": "elo", "last": 1})
    for _ in range(TURNS):
        played.turn()
        if len(played.fleet.checkpoints) == 2 and not played.fleet.trainers:
            break
    RatingJob(world.services.database, GAMES).rate()
    for _ in range(3):
        played.turn()
    assert played.get()["trials"] == {"RUNNING": 2}, "most matches are not rated"

    rate_all(world.services.database)
    experiment = played.play()

    for trial in played.trials():
        assert trial["value"] == pytest.approx(rating_of(world, trial)["elo"])
    assert experiment["best"]["value"] == max(trial["value"] for trial in played.trials())


def test_runs_without_a_rated_match_have_no_rating_and_that_is_said(world: World) -> None:
    without = {key: value for key, value in SECTION.items() if key != "self_play"}
    played = start(world, section=without, budget={"runs": 1}, objective={"rating": "ordinal"})
    played.fleet.plays = lambda *_: None

    experiment = played.play("FAILED")

    assert "has recorded no ordinal on its ladder, but Environment/Cumulative Reward" in experiment["detail"]


def test_an_objective_has_one_source(world: World) -> None:
    request = {**body("two"), "objective": {"rating": "elo", "evaluate": {}}}

    answer = world.http.post("/v1/experiments", json=request)

    assert answer.status_code == 422
    assert "give one of evaluate, match and rating" in answer.text
