"""A board game from PettingZoo: learned against a scripted team, to a model that plays it; self-play on a ladder."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from ludus.cli import ludus
from ludus.client import Client
from ludus.schemas import Ladder
from tests.e2e.stack import Player
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.xdist_group("stack")]

TICTACTOE = "pettingzoo:classic.tictactoe_v3"
CONFIG = {
    "behaviors": {
        "tictactoe": {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 64, "buffer_size": 512, "num_epoch": 2},
            "network_settings": {"hidden_units": 32},
            "max_steps": 2048,
            "time_horizon": 16,
            "summary_freq": 1024,
        }
    },
    "seed": 1,
}


def test_a_board_game_is_learnt_against_a_scripted_opponent_and_the_model_plays_it(
    client: Client, play: Callable[..., Player], tmp_path: Path
) -> None:
    run = client.runs.create(CONFIG, name="board-game")
    for team in (0, 1):
        play(run.id, "--scripted", f"{team}=random", game=TICTACTOE)

    ended = client.runs.wait(run.id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "completed"), ended.stop_detail
    latest = {metric.key: metric.value or 0.0 for metric in client.metrics.list(run.id)}
    win, draw, loss = (latest[f"Environment/{outcome}"] for outcome in ("Win", "Draw", "Loss"))
    assert min(win, loss) > 0.1
    assert win + draw + loss == pytest.approx(1.0, abs=1e-5)
    # Games are over, and told of, in the summary in which their last step lies, but for those of a message or two.
    assert latest["Environment/Cumulative Reward"] == pytest.approx(win - loss, abs=0.1)

    model = client.checkpoints.download(run.id, "latest", "tictactoe.onnx", tmp_path / "tictactoe.onnx")
    arguments = ["play", str(model), TICTACTOE, "--against", "random", "--episodes", "20", "--json"]
    result = CliRunner().invoke(ludus, arguments)

    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)["summary"]["all"]
    assert summary["wins"] + summary["draws"] + summary["losses"] == 20, "masks are kept: nobody moves illegally"


def test_a_board_game_whose_teams_learn_together_ends_at_its_max_steps(
    client: Client, play: Callable[..., Player]
) -> None:
    behavior = CONFIG["behaviors"]["tictactoe"] | {"max_steps": 1000}  # type: ignore[index]
    run = client.runs.create(CONFIG | {"behaviors": {"tictactoe": behavior}}, name="together")
    play(run.id, environments=1, game=TICTACTOE)

    ended = client.runs.wait(run.id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "completed"), ended.stop_detail
    assert ended.step >= 1000
    codes = [event.data["code"] for event in client.events.list(run.id) if event.type == "simulator_left"]
    assert codes == ["run_finished"], "it played from the beginning to the end"


def test_self_play_fills_a_ladder_whose_ratings_are_those_of_the_trainer(
    client: Client, play: Callable[..., Player]
) -> None:
    behavior = CONFIG["behaviors"]["tictactoe"] | {  # type: ignore[index]
        "self_play": {"save_steps": 256, "swap_steps": 64, "team_change": 512, "play_against_latest_model_ratio": 0.3}
    }
    run = client.runs.create(CONFIG | {"behaviors": {"tictactoe": behavior}}, name="league")
    for _ in range(2):
        play(run.id, game=TICTACTOE)

    ended = client.runs.wait(run.id, timeout=60)

    assert (ended.state, ended.stop_reason) == ("SUCCEEDED", "completed"), ended.stop_detail
    ladder = eventually(lambda: rated(client, run.id), "every match is rated", 30)
    matches = list(client.ladders.list_matches(run.id))
    assert len(matches) == ladder.matches > 50
    teams = {match.participants[0].team for match in matches}
    assert teams == {0, 1}, "both have learned in their turns"
    ratings = list(client.ladders.list_ratings(run.id))
    (policy,) = [each for each in ratings if each.kind == "policy"]
    snapshots = [each for each in ratings if each.kind == "snapshot"]
    assert len(snapshots) > 2
    newest = next(match for match in matches if match.rated)
    assert policy.elo == pytest.approx(newest.elo, abs=1e-6), "as the trainer has it"
    latest = {metric.key: metric.value for metric in client.metrics.list(run.id)}
    assert latest["Self-play/ELO"] == pytest.approx(policy.elo, abs=20)
    payoffs = client.ladders.payoffs(run.id)
    assert sum(map(sum, payoffs.games)) == 2 * sum(match.rated for match in matches)


def rated(client: Client, run: str) -> Ladder | None:
    """Return a run's ladder when all its matches are in the ratings."""
    ladder = client.ladders.get(run)
    return ladder if ladder.rated_through == ladder.matches else None
