"""What `ludus learn` refuses before it trains: folders, builds and configurations."""

from pathlib import Path

from tests.ludus.cli.conftest import Invoke
from tests.server.app.world import World


def test_results_of_before_are_neither_overwritten_nor_missed(folder: Path, cli: Invoke) -> None:
    (folder / "results" / "old").mkdir(parents=True)

    again = cli("learn", "ppo.yaml", "--run-id", "old")
    nothing = cli("learn", "ppo.yaml", "--run-id", "new", "--resume")
    no_beginning = cli("learn", "ppo.yaml", "--run-id", "new", "--initialize-from", "nobody")

    assert (again.exit_code, nothing.exit_code, no_beginning.exit_code) == (1, 1, 1)
    assert "Previous data from this run ID was found." in again.stderr
    assert "Previous data from this run ID was not found." in nothing.stderr
    assert "Could not initialize from results/nobody." in no_beginning.stderr


def test_a_build_that_is_not_there_is_noticed_before_anything_starts(folder: Path, cli: Invoke) -> None:
    result = cli("learn", "ppo.yaml", "--env", "builds/game")

    assert result.exit_code == 1
    assert "Couldn't launch the builds/game environment." in result.stderr
    assert not (folder / "results").exists()


def test_a_folder_of_mlagents_cannot_be_resumed_but_says_what_can_be_done(folder: Path, cli: Invoke) -> None:
    (folder / "results" / "theirs").mkdir(parents=True)

    result = cli("learn", "ppo.yaml", "--run-id", "theirs", "--resume")

    assert result.exit_code == 1
    assert "--initialize-from" in result.stderr


def test_a_configuration_that_the_server_refuses_leaves_no_folder(folder: Path, cli: Invoke) -> None:
    (folder / "bad.yaml").write_text("behaviors: {A: {max_stepz: 1}}")

    result = cli("learn", "bad.yaml", "--run-id", "bad")

    assert result.exit_code == 1
    assert "behaviors.A.max_stepz" in result.stderr
    assert not (folder / "results" / "bad").exists()


def test_results_that_cannot_be_written_are_a_sentence(folder: Path, cli: Invoke, world: World) -> None:
    (folder / "results").write_text("a file where the folder should be")

    result = cli("learn", "ppo.yaml", "--remote-env", "--run-id", "nowhere")

    assert result.exit_code == 1
    assert "The results can't be written" in result.stderr
    assert world.http.get("/v1/runs/nowhere").status_code == 404, "no run is left behind"
