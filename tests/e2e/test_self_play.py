"""Self-play against another run's policies, and what a kill -9 in the middle of it leaves: one history, one ledger."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from ludus.cli import ludus
from ludus.client import ApiError, Client
from tests.e2e.stack import LudusUp, Player
from tests.e2e.test_board_game import CONFIG, TICTACTOE, rated
from tests.e2e.test_faults import the
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.xdist_group("stack")]

SELF_PLAY = {"save_steps": 256, "swap_steps": 64, "team_change": 512, "play_against_latest_model_ratio": 0.0}


def config(max_steps: int, opponents: list[str]) -> dict[str, Any]:
    """Return the configuration of a board game against snapshots, and against these."""
    behavior: dict[str, Any] = CONFIG["behaviors"]["tictactoe"]  # type: ignore[index]
    self_play = {**SELF_PLAY, "opponents": opponents}
    changed = {**behavior, "max_steps": max_steps, "checkpoint_interval": 1024, "self_play": self_play}
    return {**CONFIG, "behaviors": {"tictactoe": changed}}


def test_a_killed_run_goes_on_against_the_same_policies_of_another_run_and_no_match_counts_twice(
    stack: LudusUp, client: Client, play: Callable[..., Player]
) -> None:
    origin = client.runs.create(config(1536, []))
    play(origin.id, game=TICTACTOE)
    assert client.runs.wait(origin.id, timeout=60).state == "SUCCEEDED"
    (final,) = [each.id for each in client.checkpoints.list(origin.id) if each.reason == "final"]
    with pytest.raises(ApiError, match=r"self_play\.opponents\[1\].*there is no checkpoint"):
        client.runs.create(config(1024, [final, "ckpt_" + "0" * 26]))

    run = client.runs.create(config(1_000_000, [final, f"{final}#1"]))
    for _ in range(2):
        play(run.id, game=TICTACTOE)
    guests = {f"{origin.id}/tictactoe@{final}": "checkpoint", f"{origin.id}/tictactoe#1": "snapshot"}

    def met() -> bool:
        found = {each.name: each for each in client.ladders.list_players(run.id)}
        return found.keys() >= guests.keys() and len(client.checkpoints.list(run.id)) >= 2

    eventually(met, "both of the other run's policies have played, and a checkpoint", 60)
    the(stack.processes("worker.trainer")).kill()
    eventually(lambda: client.runs.get(run.id).attempt == 2, "a second attempt")
    count = len(client.checkpoints.list(run.id))
    eventually(lambda: len(client.checkpoints.list(run.id)) > count, "the second attempt's checkpoint", 60)
    client.runs.stop(run.id)
    assert client.runs.wait(run.id, timeout=40).state == "SUCCEEDED"
    eventually(lambda: rated(client, run.id), "every match is rated", 30)

    matches = list(client.ladders.list_matches(run.id, limit=100_000))
    numbers = sorted(match.number or 0 for match in matches)
    assert numbers == list(range(1, len(numbers) + 1)), "one history, without gaps"
    assert {match.attempt for match in matches} == {1, 2}
    again = {participant.name for match in matches if match.attempt == 2 for participant in match.participants}
    assert again >= guests.keys(), "the second attempt plays against them, too"
    players = {each.name: each for each in client.ladders.list_players(run.id)}
    assert {name: players[name].kind for name in guests} == guests
    assert {players[name].run_id for name in guests} == {origin.id}
    ratings = {each.name: each for each in client.ladders.list_ratings(run.id)}
    assert all(ratings[name].games > 0 for name in guests)
    newest = next(match for match in matches if match.rated)
    (policy,) = [each for each in ratings.values() if each.kind == "policy"]
    assert policy.elo == pytest.approx(newest.elo, abs=1e-6), "as the trainer has it, over the kill"


SCISSORS = "python:examples/games/scissors.py"


def duel(max_steps: int, **self_play: Any) -> dict[str, Any]:
    """Return a configuration of rock-paper-scissors with weights."""
    behavior: dict[str, Any] = CONFIG["behaviors"]["tictactoe"]  # type: ignore[index]
    changed = {**behavior, "max_steps": max_steps, "checkpoint_interval": 512, "self_play": {**SELF_PLAY, **self_play}}
    return {**CONFIG, "behaviors": {"Scissors": changed}}


def test_an_exploiter_that_is_killed_goes_on_against_the_run_that_it_follows_which_meets_it_in_turn(
    stack: LudusUp, client: Client, play: Callable[..., Player]
) -> None:
    main = client.runs.create(duel(1536, opponents=["run:nobody"]), name="duel")
    play(main.id, "--env-arg", "tables=8", environments=1, game=SCISSORS)
    assert client.runs.wait(main.id, timeout=60).state == "SUCCEEDED"
    (missing,) = [event for event in client.events.list(main.id) if event.type == "followed_run_missing"]
    assert missing.data["run"] == "nobody"
    final = client.checkpoints.get(main.id).id

    exploiter = client.runs.create(
        duel(1_000_000, opponents=["run:duel"], exploiter={"reset_steps": 1024}), name="exploiter"
    )
    play(exploiter.id, "--env-arg", "tables=8", environments=1, game=SCISSORS)

    def resets() -> list[int]:
        return [event.data["resets"] for event in client.events.list(exploiter.id) if event.type == "exploiter_reset"]

    eventually(lambda: resets() and client.checkpoints.list(exploiter.id), "a reset, and a checkpoint", 60)
    the(stack.processes("worker.trainer")).kill()
    eventually(lambda: client.runs.get(exploiter.id).attempt == 2, "a second attempt")
    count = len(resets())
    eventually(lambda: len(resets()) > count + 1, "it is reset again", 60)
    client.runs.stop(exploiter.id)
    assert client.runs.wait(exploiter.id, timeout=40).state == "SUCCEEDED"
    late = [match for match in client.ladders.list_matches(exploiter.id, limit=1000) if match.attempt == 2]
    opponents = {participant.name for match in late for participant in match.participants[1:]}
    assert opponents == {f"duel/Scissors@{final}"}, "the newest policy of the run that it follows, and no other one"

    again = client.runs.create(duel(1536, opponents=["run:exploiter#*"]))
    play(again.id, "--env-arg", "tables=8", environments=1, game=SCISSORS)
    assert client.runs.wait(again.id, timeout=60).state == "SUCCEEDED"
    met = {player.name for player in client.ladders.list_players(again.id)}
    assert any(name.startswith("exploiter/Scissors#") for name in met), met


def test_a_best_response_to_a_policy_is_trained_and_says_how_much_it_wins(
    stack: LudusUp, client: Client, play: Callable[..., Player]
) -> None:
    run = client.runs.create(duel(512), name="policy")
    play(run.id, "--env-arg", "tables=8", environments=1, game=SCISSORS)
    assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED"
    quick = "behaviors.Scissors.hyperparameters.learning_rate=0.01"
    arguments = [run.id, SCISSORS, "--env-arg", "tables=8", "--steps", "8192", "--set", quick, "--episodes", "50"]

    addresses = {"LUDUS_SERVER": stack.api, "LUDUS_SIMULATOR_SERVER": stack.gateway}
    result = CliRunner().invoke(ludus, ["exploitability", *arguments, "--json"], env=addresses)

    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["low"] <= told["exploitability"] <= told["high"]
    assert told["exploitability"] > 0.1, "nearly untrained it plays each move alike, and rock beats that by 1/3"
    assert {side: summary["episodes"] for side, summary in told["sides"].items()} == {"0": 50, "1": 50}
