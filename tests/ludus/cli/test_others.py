import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import ludus.cli
from ludus.cli import checkpoint, exits
from ludus.cli.client import Failure
from ludus.cli.options import Requirement, duration, parse_requirement
from ludus.cli.render import number, size, span
from ludus.client import Client
from ludus.schemas import CheckpointFile
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import World


def test_configurations_are_stored_listed_shown_and_compared(cli: Invoke) -> None:
    cli("config", "create", "base", "-", "--description", "first", input="# mine\nbehaviors: {X: {}}\n")
    cli("config", "create", "base", "-", input="behaviors: {X: {max_steps: 10, network_settings: {normalize: true}}}")

    assert cli("config", "show", "base@1").stdout == "# mine\nbehaviors: {X: {}}\n"
    assert "max_steps: 500000" in cli("config", "show", "base@1", "--resolved").stdout
    assert as_json(cli("config", "show", "base", "--json"))["version"] == 2
    assert cli("config", "list").stdout.splitlines()[1].split()[:2] == ["base", "2"]
    assert [line.split()[1] for line in cli("config", "list", "base").stdout.splitlines()[1:]] == ["2", "1"]
    assert cli("config", "diff", "base", "1", "2").stdout.splitlines() == [
        "- behaviors.X.network_settings.normalize: false",
        "+ behaviors.X.network_settings.normalize: true",
        "- behaviors.X.max_steps: 500000",
        "+ behaviors.X.max_steps: 10",
    ]
    cli("run", "create", "--config", "base@1", "--name", "of-base", "--set", "behaviors.X.max_steps=7")
    compared = cli("config", "diff", "base", "1", "--run", "of-base").stdout
    assert "- behaviors.X.max_steps: 500000\n+ behaviors.X.max_steps: 7\n" in compared
    for wrong in ((), ("2", "--run", "of-base")):
        assert cli("config", "diff", "base", "1", *wrong).exit_code == exits.Exit.USAGE
    assert cli("config", "show", "base@x").exit_code == exits.Exit.USAGE
    assert cli("config", "show", "base@9").exit_code == exits.Exit.REFUSED


def test_checkpoints_are_listed_and_models_downloaded(cli: Invoke, world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create(name="with-models")["id"]).start()
    files = {"CartPole.onnx": b"the model", "state.safetensors": b"everything"}
    trainer.save(100, files, tmp_path)
    newest = trainer.save(200, files, tmp_path)
    output = tmp_path / "out"

    table = cli("checkpoint", "list", "with-models").stdout
    models = cli("checkpoint", "download", "with-models", "-o", str(output))
    everything = cli("checkpoint", "download", "with-models", newest, "--file", "*", "-o", str(tmp_path / "all"))

    assert table.splitlines()[1].split()[:3] == [newest, "200", "interval"]
    assert models.stdout.split() == [str(output / "CartPole.onnx")]
    assert (output / "CartPole.onnx").read_bytes() == b"the model"
    assert len(everything.stdout.split()) == 2
    unfit = cli("checkpoint", "download", "with-models", "--for", "godot", "-o", str(output))
    assert (unfit.exit_code, "CartPole.onnx is no ONNX model" in unfit.stderr) == (exits.Exit.REFUSED, True)
    assert (output / "CartPole.onnx").read_bytes() == b"the model"
    missing = cli("checkpoint", "download", "with-models", "--file", "Other.onnx")
    assert (missing.exit_code, "it has CartPole.onnx" in missing.stderr) == (exits.Exit.REFUSED, True)


def test_a_file_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    found = checkpoint.Checkpoint(
        id="ckpt_1",
        run_id="run_1",
        attempt=1,
        step=1,
        steps={},
        reason="final",
        size=1,
        files=(CheckpointFile(name="../x", size=1, sha256=""),),
        created_at=datetime.now(UTC),
    )

    with Client("http://127.0.0.1:9") as client, pytest.raises(Failure, match="outside"):
        checkpoint.fetch(client, found, found.files[0].name, tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800)]
)
def test_a_duration_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert duration.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "m", "1x", "-3s", "h30"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        duration.convert(text, None, None)


def test_a_requirement_is_a_key_an_operator_and_a_number() -> None:
    assert parse_requirement("reward>=475") == Requirement(
        "reward>=475", None, "Environment/Cumulative Reward", ">=", 475
    )
    assert parse_requirement(" Striker: Losses/Policy Loss < -1e-3 ") == Requirement(
        "Striker: Losses/Policy Loss < -1e-3", "Striker", "Losses/Policy Loss", "<", -0.001
    )
    assert parse_requirement("Striker?team=1:reward>0").behavior == "Striker?team=1"
    assert not parse_requirement("reward != 0").holds(float("nan"))
    with pytest.raises(ValueError, match="'nan' in 'reward>=nan' is not a number"):
        parse_requirement("reward>=nan")


def test_numbers_are_short() -> None:
    assert [number(value) for value in (None, 1234567, 0.123456, 1234.56, 500.0, float("nan"))] == [
        "-",
        "1,234,567",
        "0.1235",
        "1,234.6",
        "500",
        "nan",
    ]
    assert [size(value) for value in (999, 1000, 1_500_000)] == ["999 B", "1.0 kB", "1.5 MB"]
    assert [span(value) for value in (0.4, 61, 3600, 90061)] == ["0s", "1m 1s", "1h 0m", "1d 1h"]


def test_a_command_of_the_server_says_what_it_needs_where_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ludus.cli, "PLUG_INS", "ludus.no-such-group")

    result = CliRunner().invoke(ludus.cli.ludus, ["up", "--port", "0"])

    assert result.exit_code == 1
    assert "client only" in result.stderr
    assert "pip install" in result.stderr


def test_the_client_commands_import_neither_the_server_nor_heavy_libraries() -> None:
    code = (
        "import sys; from ludus.cli import ludus;"
        "import ludus.cli.run, ludus.cli.config, ludus.cli.checkpoint, ludus.cli.demonstration;"
        "heavy = {'server', 'worker', 'torch', 'fastapi', 'sqlalchemy', 'numpy', 'grpc'} & set(sys.modules);"
        "assert not heavy, heavy"
    )

    subprocess.run([sys.executable, "-c", code], check=True)
