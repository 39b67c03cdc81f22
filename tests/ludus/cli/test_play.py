"""`ludus play` says how good a model is: in a table, as JSON, and by its exit code."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from ludus.adapters.pettingzoo import make_simulation
from ludus.cli import ludus
from ludus.config.network import NetworkSettings
from ludus.demonstrations import read
from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from worker.learning.networks.actor import Actor
from worker.onnx.export import export_onnx

TICTACTOE = "pettingzoo:classic.tictactoe_v3"
CARTPOLE = "gymnasium:CartPole-v1"
CARTPOLE_SPEC = BehaviorSpec("CartPole", (ObservationSpec((4,)),), ActionSpec(0, (2,)))


def play(*arguments: str) -> Result:
    result = CliRunner().invoke(ludus, ["play", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def export(spec: BehaviorSpec, path: Path, change: Callable[[Actor], None] = lambda _: None) -> str:
    actor = Actor(spec, NetworkSettings.model_validate({"hidden_units": 8}), torch.Generator().manual_seed(1))
    with torch.no_grad():
        change(actor)
    export_onnx(actor, spec, path)
    return str(path)


@pytest.fixture
def first_free(tmp_path: Path) -> str:
    """A tic-tac-toe player that takes the first cell that is free."""

    def prefer_the_first(actor: Actor) -> None:
        actor.head.weight.zero_()
        actor.head.bias.copy_(torch.arange(9.0, 0.0, -1.0) * 5)

    return export(make_simulation("classic.tictactoe_v3").behaviors[0], tmp_path / "first.onnx", prefer_the_first)


@pytest.fixture
def cartpole(tmp_path: Path) -> str:
    return export(CARTPOLE_SPEC, tmp_path / "CartPole.onnx")


def test_a_model_is_played_on_every_side(first_free: str) -> None:
    result = play(first_free, TICTACTOE, "--against", "random", "--episodes", "40", "--seed", "5")

    assert result.exit_code == 0, result.output
    title, header, *rows = result.stdout.splitlines()
    assert title == "first.onnx in classic.tictactoe_v3 against random, seeds 5 to 24"
    assert header.split()[:3] == ["SIDE", "EPISODES", "REWARD"]
    assert [row.split()[0] for row in rows] == ["team", "team", "all"]
    wins, _, losses = map(int, rows[0].split()[-3:])
    assert wins > losses, "who begins so, mostly wins"


def test_the_same_command_has_the_same_result_and_another_seed_another(first_free: str) -> None:
    arguments = (first_free, TICTACTOE, "--against", "random", "--episodes", "20", "--json")

    first, again, other = play(*arguments), play(*arguments), play(*arguments, "--seed", "100")

    assert first.stdout == again.stdout != other.stdout


def test_drawn_actions_repeat_themselves_with_the_seed(cartpole: str) -> None:
    arguments = (cartpole, CARTPOLE, "--sample", "--episodes", "3", "--json")

    first, again = play(*arguments), play(*arguments)
    likeliest = play(*arguments[:2], *arguments[3:])

    assert first.stdout == again.stdout
    assert json.loads(first.stdout)["episodes"] != json.loads(likeliest.stdout)["episodes"]


def test_json_has_every_episode_and_the_sides(first_free: str) -> None:
    result = play(first_free, TICTACTOE, "--against", first_free, "--episodes", "4", "--json")

    document = json.loads(result.stdout)
    assert document["game"] == TICTACTOE
    assert [(episode["seed"], episode["team"], episode["outcome"]) for episode in document["episodes"]] == [
        (0, 0, "win"),
        (0, 1, "loss"),
        (1, 0, "win"),
        (1, 1, "loss"),
    ]
    assert list(document["summary"]) == ["team 0", "team 1", "all"]
    assert document["summary"]["all"]["wins"] == document["summary"]["all"]["losses"] == 2
    assert "all games of a side went the same way: both models always act alike; try --sample" in result.stderr


def test_one_side_can_be_chosen(first_free: str) -> None:
    result = play(first_free, TICTACTOE, "--against", "random", "--episodes", "5", "--team", "1", "--json")

    document = json.loads(result.stdout)
    assert [(episode["seed"], episode["team"]) for episode in document["episodes"]] == [(seed, 1) for seed in range(5)]
    assert list(document["summary"]) == ["all"]


def test_a_game_of_one_has_no_sides(cartpole: str) -> None:
    result = play(cartpole, CARTPOLE, "--episodes", "3", "--env-arg", "max_episode_steps=7")

    title, header, row = result.stdout.splitlines()
    assert title == "CartPole.onnx in CartPole-v1, seeds 0 to 2"
    assert "WINS" not in header
    assert row.split()[:3] == ["all", "3", "7"]


def test_requirements_decide_about_the_exit_code(first_free: str) -> None:
    arguments = (first_free, TICTACTOE, "--against", "random", "--episodes", "20", "--team", "0")

    met = play(*arguments, "--require", "win>=0.3", "--require", "length<=5")
    unmet = play(*arguments, "--require", "win>=0.3", "--require", "loss<0")
    unknown = play("random", CARTPOLE, "--episodes", "2", "--require", "win>=0.1")

    assert (met.exit_code, unmet.exit_code, unknown.exit_code) == (0, 6, 6)
    assert "win>=0.3: met, it is" in met.stderr
    assert "loss<0: not met, it is" in unmet.stderr
    assert "win>=0.1: not met, there is only reward, length" in unknown.stderr


def test_players_of_one_team_are_all_the_models(first_free: str) -> None:
    result = play(first_free, TICTACTOE, "--teams", "0", "--episodes", "1", "--json")

    (episode,) = json.loads(result.stdout)["episodes"]
    assert (episode["team"], episode["outcome"], episode["cumulative_reward"]) == (0, "unspecified", 0.0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("random", TICTACTOE), "the game has 2 teams: say who plays the others, with --against random"),
        (("random", CARTPOLE, "--against", "random"), "--against needs at least two"),
        (("random", CARTPOLE, "--team", "0"), "the game has no team 0: it has no teams at all"),
        (("random", TICTACTOE, "--against", "random", "--team", "2"), "the game has no team 2: 0, 1"),
        (("nobody.onnx", CARTPOLE), "'nobody.onnx' is neither 'random' nor a file"),
        (("random", CARTPOLE, "--teams", "0"), "for games with several players"),
        (("random", TICTACTOE, "--teams", "a,b"), "'a,b' names no teams; write their numbers, as in 0,1"),
        (("random", CARTPOLE, "--env-arg", "gravity=2"), "unexpected keyword argument 'gravity'"),
        (("random", CARTPOLE, "--env-arg", "gravity"), "has no '='"),
        (("random", "pettingzoo:mpe.simple_v3"), "MPE2"),
    ],
)
def test_what_cannot_be_played_is_a_usage_error(arguments: tuple[str, ...], problem: str) -> None:
    result = play(*arguments)

    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())


def test_a_model_of_another_game_is_a_usage_error(cartpole: str) -> None:
    result = play(cartpole, TICTACTOE, "--against", "random")

    assert result.exit_code == 2
    assert "sees observations of shapes [[4]], tictactoe shows [[18]]" in result.stderr


@pytest.mark.parametrize(
    ("missing", "game", "remedy"),
    [
        ("pettingzoo", TICTACTOE, "pip install pettingzoo gymnasium pygame-ce"),
        ("gymnasium", CARTPOLE, "pip install gymnasium"),
        ("gymnasium", TICTACTOE, "pip install pettingzoo gymnasium pygame-ce"),
    ],
)
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, missing: str, game: str, remedy: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    result = play("random", game, "--against", "random")

    assert result.exit_code == 2
    assert f"{missing} is not installed here; {remedy}" in result.stderr


def test_a_missing_runtime_is_named(monkeypatch: pytest.MonkeyPatch, cartpole: str) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)

    result = play(cartpole, CARTPOLE)

    assert result.exit_code == 1
    assert "onnxruntime is not installed. `ludus play` needs the extra `play`" in result.stderr


def test_a_game_of_ones_own_is_found_where_one_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_duel.py").write_text("from tests.toys.arena import Arena as env\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    result = play("random", "pettingzoo:my_duel", "--against", "random", "--episodes", "4", "--env-arg", "limit=3")

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "random in my_duel against random, seeds 0 to 0"


MAZES = "python:tests/toys/mazes.py"


class TestPythonGames:
    def test_episodes_of_ones_own_environment_are_played(self) -> None:
        result = play("random", f"{MAZES}:Maze", "--episodes", "6", "--json")

        document = json.loads(result.stdout)
        assert document["game"] == "python:tests/toys/mazes.py:Maze"
        assert all(episode["cumulative_reward"] == -episode["length"] for episode in document["episodes"])

    def test_a_simulations_game_is_the_first_episode_of_each_agent_that_asks_first(self) -> None:
        arguments = ("random", f"{MAZES}:Crowd", "--env-arg", "walkers=2", "--episodes", "10", "--json")

        first, again = play(*arguments), play(*arguments)

        episodes = json.loads(first.stdout)["episodes"]
        assert first.stdout == again.stdout, "each start has its seed"
        # Each of the two walkers pays 1 for each of its steps: neither the third one, nor later episodes are counted.
        assert all(episode["cumulative_reward"] == -episode["length"] for episode in episodes)
        assert all(1 <= episode["length"] <= 30 for episode in episodes)
        assert len({episode["length"] for episode in episodes}) > 1

    def test_a_simulation_that_introduces_behaviors_late_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "late.py").write_text(
            "from tests.toys.mazes import Crowd\n"
            "class Late(Crowd):\n"
            "    behaviors = ()\n"
            "    def reset(self, builder, start):\n"
            "        builder.announce(Crowd.behaviors[0])\n"
            "        super().reset(builder, start)\n"
        )

        result = play("random", f"python:{tmp_path / 'late.py'}")

        assert result.exit_code == 2
        assert "the game introduces Walker while it plays" in " ".join(result.output.split())


class TestRecording:
    def test_the_episodes_of_the_model_become_a_demonstration(self, cartpole: str, tmp_path: Path) -> None:
        record = tmp_path / "shown.npz"

        result = play(cartpole, CARTPOLE, "--episodes", "5", "--record", str(record), "--json")

        shown, episodes = read(record), json.loads(result.stdout)["episodes"]
        assert shown.complete.all()
        assert shown.returns.tolist() == [episode["cumulative_reward"] for episode in episodes]
        assert shown.lengths.tolist() == [episode["length"] for episode in episodes]
        assert f"{record} holds {shown.steps} transitions, 5 whole episodes" in result.stderr

    def test_a_recording_that_exists_goes_on(self, cartpole: str, tmp_path: Path) -> None:
        record = tmp_path / "shown.npz"

        for seed in ("0", "2"):
            play(cartpole, CARTPOLE, "--episodes", "2", "--seed", seed, "--record", str(record))

        assert read(record).complete.sum() == 4

    def test_only_the_side_of_the_model_is_recorded(self, first_free: str, tmp_path: Path) -> None:
        record = tmp_path / "shown.npz"

        play(first_free, TICTACTOE, "--against", "random", "--episodes", "6", "--record", str(record))

        shown = read(record)
        assert shown.action_masks is not None
        assert shown.complete.sum() == 6, "one player's episode of each game"
        assert (shown.discrete[:, 0] == shown.action_masks.argmax(axis=1)).all(), (
            "the first free cell, as the model does"
        )

    def test_of_a_simulation_whole_first_episodes_are_recorded(self, tmp_path: Path) -> None:
        record = tmp_path / "shown.npz"

        play("random", f"{MAZES}:Crowd", "--episodes", "3", "--record", str(record))

        shown = read(record)
        assert shown.complete.all()
        assert shown.pieces == 3 * 2

    def test_a_recording_of_another_game_is_not_continued(self, cartpole: str, tmp_path: Path) -> None:
        record = tmp_path / "shown.npz"
        play("random", f"{MAZES}:Maze", "--episodes", "1", "--record", str(record))

        result = play(cartpole, CARTPOLE, "--episodes", "1", "--record", str(record))

        assert result.exit_code == 2
        assert "the recording" in " ".join(result.output.split())
        assert read(record).spec.behavior == "Maze"
