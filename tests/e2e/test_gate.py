"""Gates through a whole stack: frozen policies on real simulators, a verdict, and what a pipeline gets of it."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import psutil
import pytest
from click.testing import CliRunner, Result

from ludus.cli import ludus
from ludus.cli.exits import Exit
from ludus.client import Client, NotFound
from ludus.schemas import EvaluationResult, MatchResult, Run
from tests.e2e.stack import LudusUp, Player
from tests.e2e.test_board_game import CONFIG, TICTACTOE
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("stack")]


def trained(
    client: Client, play: Callable[..., Player], name: str, steps: int, interval: int, **section: Any
) -> list[str]:
    """Train tic-tac-toe against random players; return the run's checkpoints, oldest first."""
    behavior = CONFIG["behaviors"]["tictactoe"] | {  # type: ignore[index]
        "max_steps": steps,
        "checkpoint_interval": interval,
        "keep_checkpoints": 100,
        **section,
    }
    run = client.runs.create(CONFIG | {"behaviors": {"tictactoe": behavior}}, name=name)
    for team in (0, 1):
        play(run.id, "--scripted", f"{team}=random", game=TICTACTOE)
    ended = client.runs.wait(run.id, timeout=100)
    assert ended.state == "SUCCEEDED", ended.stop_detail
    return [each.id for each in client.checkpoints.list(run.id)][::-1]


@pytest.fixture(scope="module")
def saved() -> dict[str, list[str]]:
    """Checkpoints that the tests of this module share, once they are trained."""
    return {}


@pytest.fixture
def checkpoints(client: Client, play: Callable[..., Player], saved: dict[str, list[str]]) -> list[str]:
    if not saved:
        saved["tictactoe"] = trained(client, play, "gated", 1536, 512)
    return saved["tictactoe"]


def command(stack: LudusUp, *arguments: str) -> Result:
    """Run a command that starts its own simulators."""
    options = ["--game", TICTACTOE, "--gateway", stack.gateway, "--timeout", "60s"]
    return CliRunner().invoke(ludus, [*arguments, *options], env={"LUDUS_SERVER": stack.api})


def counted(client: Client, run: str) -> MatchResult | EvaluationResult | None:
    try:
        return client.runs.result(run)
    except NotFound:
        return None


@pytest.mark.long
def test_a_candidate_passes_is_promoted_and_the_report_says_so(
    stack: LudusUp, client: Client, checkpoints: list[str], tmp_path: Path
) -> None:
    client.aliases.set("champion", checkpoints[0])
    report = tmp_path / "gate.xml"

    # Nobody who has learned anything is 1,000 points weaker than before: a verdict within a few pairs.
    bounds = ["--elo0=-1000", "--elo1=-500", "--seed", "4"]
    result = command(stack, "gate", "gated/latest", *bounds, "--promote", "--json", "--junit", str(report))

    assert result.exit_code == Exit.OK, result.output
    found = json.loads(result.stdout)["result"]
    assert (found["verdict"], found["paired"], found["candidate"]) == ("pass", True, checkpoints[-1])
    assert found["games"] == found["wins"] + found["draws"] + found["losses"] == 2 * sum(found["pairs"]) > 0
    assert found["llr"] >= found["llr_upper"]
    assert client.aliases.get("champion").checkpoint_id == checkpoints[-1]
    suite = ET.fromstring(report.read_text())
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "0", "0")
    run = client.runs.get(json.loads(result.stdout)["run"]["id"])
    assert (run.kind, run.state, run.stop_reason) == ("match", "SUCCEEDED", "completed")
    assert any(event.type == "assessment_decided" for event in client.events.list(run.id))


@pytest.mark.long
def test_a_candidate_that_is_not_much_stronger_fails(
    stack: LudusUp, client: Client, checkpoints: list[str], tmp_path: Path
) -> None:
    client.aliases.set("leader", checkpoints[1])
    report = tmp_path / "gate.xml"

    arguments = ["--against", "leader", "--elo0", "700", "--elo1", "1200", "--promote", "--junit", str(report)]
    result = command(stack, "gate", checkpoints[2], *arguments)

    assert result.exit_code == Exit.FAILED_GATE, result.output
    assert "the candidate fails" in result.output
    assert client.aliases.get("leader").checkpoint_id == checkpoints[1], "nobody is promoted who fails"
    failure = ET.fromstring(report.read_text()).find("testcase/failure")
    assert failure is not None
    assert failure.get("type") == "fail"


@pytest.mark.faults
def test_a_killed_trainer_costs_no_game_and_counts_none_twice(
    stack: LudusUp, client: Client, play: Callable[..., Player], checkpoints: list[str]
) -> None:
    client.ladders.create("arena")
    named = {"candidate": checkpoints[1], "champion": checkpoints[2], "ladder": "arena"}
    bounds = {"elo0": -1, "elo1": 1, "max_games": 1000, "seed_parameter": "seed"}
    run = client.runs.create({"match": {**named, **bounds}, "seed": 6})
    for _ in range(2):
        play(run.id, "--seed-parameter", "seed", game=TICTACTOE)
    before = eventually(lambda: some_games(client, run), "a hundred games are counted", 60)

    kill_trainer(stack)
    ended = client.runs.wait(run.id, timeout=90)
    result = client.runs.result(run.id)

    assert isinstance(result, MatchResult)
    assert (ended.state, ended.attempt) == ("SUCCEEDED", 2), ended.stop_detail
    assert before.games <= result.games == 1000
    assert result.verdict == "undecided"
    assert (result.wins + result.draws + result.losses, 2 * sum(result.pairs or ())) == (1000, 1000)
    matches = list(client.ladders.list_matches("arena", limit=2000))
    assert len(matches) == 1000, "the ledger has each of them once"
    outcomes = [match.outcome for match in matches]
    assert [outcomes.count(outcome) for outcome in ("win", "draw", "loss")] == [
        result.wins,
        result.draws,
        result.losses,
    ]
    players = {player.name: player.kind for player in client.ladders.list_players("arena")}
    assert players == {f"gated/tictactoe@{each}": "checkpoint" for each in checkpoints[1:]}


def some_games(client: Client, run: Run) -> MatchResult | None:
    found = counted(client, run.id)
    return found if isinstance(found, MatchResult) and found.games >= 100 else None


def kill_trainer(stack: LudusUp) -> None:
    """Kill the trainer that plays; another one waits warm, which has used the least of a processor."""
    worker = psutil.Process(stack.children()["worker"].pid)
    trainers = [each for each in worker.children(recursive=True) if "worker.trainer" in each.cmdline()]
    busiest = max(trainers, key=lambda each: sum(each.cpu_times()[:2]))
    os.kill(busiest.pid, signal.SIGKILL)


@pytest.mark.long
def test_a_game_with_one_side_only_is_no_match(
    client: Client, play: Callable[..., Player], checkpoints: list[str]
) -> None:
    run = client.runs.create({"match": {"candidate": checkpoints[0], "champion": checkpoints[1]}})
    play(run.id, "--scripted", "1=random", game=TICTACTOE)

    alone = client.runs.wait(run.id, timeout=60)

    assert (alone.state, alone.stop_reason) == ("FAILED", "invalid_config")
    assert "a match is between two" in (alone.stop_detail or "")


@pytest.mark.long
def test_an_evaluation_plays_its_episodes_and_decides(
    stack: LudusUp, client: Client, play: Callable[..., Player]
) -> None:
    config: dict[str, Any] = {
        "behaviors": {
            "CartPole": {
                "trainer_type": "ppo",
                "hyperparameters": {"batch_size": 32, "buffer_size": 256},
                "network_settings": {"hidden_units": 16},
                "max_steps": 256,
            }
        }
    }
    run = client.runs.create(config, name="balanced")
    play(run.id, game="gymnasium:CartPole-v1")
    assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED"

    options = ["--game", "gymnasium:CartPole-v1", "--gateway", stack.gateway, "--timeout", "60s", "--seed", "5"]
    arguments = ["evaluate", "balanced/latest", "--episodes", "12", "--threshold", "450", "--json", *options]
    result = CliRunner().invoke(ludus, arguments, env={"LUDUS_SERVER": stack.api})

    found = json.loads(result.stdout)["result"]
    assert (result.exit_code, found["verdict"], found["episodes"]) == (Exit.FAILED_GATE, "fail", 12), result.output
    assert found["seeded"] is True
    assert found["least"] <= found["low"] <= found["mean"] <= found["high"] <= found["most"]
    assert found["mean_length"] == found["mean"], "CartPole pays 1 for each step"


@pytest.mark.long
def test_a_game_of_one_player_is_asked_whether_it_got_worse_and_promotes(
    stack: LudusUp, client: Client, play: Callable[..., Player]
) -> None:
    config: dict[str, Any] = {
        "behaviors": {
            "CartPole": {
                "trainer_type": "ppo",
                "hyperparameters": {"batch_size": 32, "buffer_size": 256},
                "network_settings": {"hidden_units": 16},
                "max_steps": 512,
                "checkpoint_interval": 256,
            }
        }
    }
    run = client.runs.create(config, name="steady")
    play(run.id, game="gymnasium:CartPole-v1")
    assert client.runs.wait(run.id, timeout=60).state == "SUCCEEDED"
    newest, *_, oldest = (each.id for each in client.checkpoints.list(run.id))
    client.aliases.set("steady-champion", oldest)

    options = ["--game", "gymnasium:CartPole-v1", "--gateway", stack.gateway, "--timeout", "100s", "--seed", "5"]
    question = ["--against", "steady-champion", "--promote", "--max-games", "12", "--elo0", "-1000", "--elo1", "-500"]
    arguments = ["evaluate", newest, *question, "--json", *options]
    result = CliRunner().invoke(ludus, arguments, env={"LUDUS_SERVER": stack.api})

    found = json.loads(result.stdout)["result"]
    assert (found["kind"], found["compare"], found["paired"]) == ("match", "return", True), result.output
    assert 0 < found["games"] <= 12
    assert found["wins"] + found["draws"] + found["losses"] == found["games"]
    assert found["difference_low"] <= found["mean"] - found["champion_mean"] <= found["difference_high"]
    promoted = client.aliases.get("steady-champion").checkpoint_id
    assert (result.exit_code == Exit.OK) == (found["verdict"] == "pass") == (promoted == newest), result.output


@pytest.mark.learning
@pytest.mark.timeout(400)
def test_a_trained_policy_passes_the_gate_against_its_own_older_snapshot(
    stack: LudusUp, client: Client, play: Callable[..., Player]
) -> None:
    rates = {"batch_size": 128, "buffer_size": 1024, "learning_rate": 3e-3, "num_epoch": 4}
    checkpoints = trained(client, play, "learned", 30_720, 1024, hyperparameters=rates)

    result = command(stack, "gate", checkpoints[-1], "--against", checkpoints[0], "--elo1", "50", "--count", "2")

    assert result.exit_code == Exit.OK, result.output
