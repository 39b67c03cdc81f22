"""`ludus config`: presets; `upgrade`: a file of an older ML-Agents in, one of today out, and what was done to it."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from ludus.cli import exits
from tests.ludus.cli.conftest import Invoke, as_json

OLD = Path(__file__).parents[2] / "data" / "configs" / "old"
FLAT = "A: {trainer: sac, use_recurrent: false, train_interval: 4, num_update: 2, colour: red}\n"
CURRICULUM = {"measure": "progress", "thresholds": [0.5], "parameters": {"height": [1, 2]}}


def test_an_old_file_is_printed_in_the_format_of_today_and_the_report_goes_beside(cli: Invoke) -> None:
    result = cli("config", "upgrade", "-", input=FLAT)

    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout) == {
        "behaviors": {"A": {"trainer_type": "sac", "hyperparameters": {"steps_per_update": 2}}}
    }
    report = result.stderr.splitlines()
    assert any(
        line.startswith("~ A.num_update -> behaviors.A.hyperparameters.steps_per_update (2 -> 2)") for line in report
    )
    assert any(line.startswith("- A.colour (red): is not known") for line in report)


def test_the_new_file_is_written_where_it_is_wanted(cli: Invoke, tmp_path: Path) -> None:
    target = tmp_path / "new.yaml"

    result = cli("config", "upgrade", str(OLD / "trainer_config.yaml"), "-o", str(target))

    assert result.stdout == ""
    assert "3DBall" in yaml.safe_load(target.read_text(encoding="utf-8"))["behaviors"]


def test_what_is_left_to_do_is_said(cli: Invoke) -> None:
    result = cli("config", "upgrade", str(OLD / "offline_bc_config.yaml"))

    left = [line for line in result.stderr.splitlines() if line.startswith("! ")]
    assert len(left) == 2
    assert "! behaviors.Hallway.demo_path:" in left[1]
    assert "ludus demonstration upload ./demos/ExpertHallway.demo" in left[1]


def test_a_file_of_today_is_returned_as_it_is_and_the_report_says_so(cli: Invoke) -> None:
    text = "# mine\nbehaviors: {A: {}}\n"

    result = cli("config", "upgrade", "-", input=text)

    assert result.stdout == text
    assert "unchanged" in result.stderr


def test_curricula_are_read_from_yaml_json_and_folders(cli: Invoke, tmp_path: Path) -> None:
    flat = tmp_path / "trainers.yaml"
    flat.write_text(FLAT, encoding="utf-8")
    folder = tmp_path / "curricula"
    folder.mkdir()
    (folder / "A.json").write_text(json.dumps(CURRICULUM), encoding="utf-8")
    by_name = tmp_path / "curricula.yaml"
    by_name.write_text(yaml.safe_dump({"A": CURRICULUM}), encoding="utf-8")

    answers = [
        as_json(cli("config", "upgrade", str(flat), "--curriculum", str(path), "--json"))
        for path in (folder, folder / "A.json", by_name)
    ]

    documents = [yaml.safe_load(answer["document"]) for answer in answers]
    assert documents[0] == documents[1] == documents[2]
    first, last = documents[0]["environment_parameters"]["height"]["curriculum"]
    assert (first["completion_criteria"]["behavior"], first["value"], last["value"]) == ("A", 1, 2)
    assert answers[0]["problems"] == []


def test_samplers_are_read_from_a_file(cli: Invoke, tmp_path: Path) -> None:
    flat, samplers = tmp_path / "trainers.yaml", tmp_path / "samplers.yaml"
    flat.write_text(FLAT, encoding="utf-8")
    samplers.write_text("mass: {sampler-type: uniform, min_value: 1, max_value: 2}", encoding="utf-8")

    result = cli("config", "upgrade", str(flat), "--sampler", str(samplers))

    assert yaml.safe_load(result.stdout)["environment_parameters"]["mass"]["sampler_type"] == "uniform"


def test_what_is_no_configuration_is_refused(cli: Invoke, tmp_path: Path) -> None:
    broken, empty = tmp_path / "A.json", tmp_path / "empty"
    broken.write_text("{", encoding="utf-8")
    empty.mkdir()

    assert cli("config", "upgrade", "-", input="x: 1").exit_code == exits.Exit.REFUSED
    for curriculum in (broken, empty):
        result = cli("config", "upgrade", "-", "--curriculum", str(curriculum), input=FLAT)
        assert result.exit_code == exits.Exit.USAGE


def test_presets_are_listed_and_a_run_is_created_with_one(cli: Invoke) -> None:
    listed = cli("config", "presets").stdout.splitlines()
    preset = cli("config", "preset", "cartpole")

    assert listed[0].split() == ["NAME", "TRAINERS", "DESCRIPTION"]
    assert listed[1].startswith("cartpole ")
    assert as_json(cli("config", "preset", "cartpole", "--json"))["source"] == preset.stdout
    assert cli("run", "create", "-", input=preset.stdout).exit_code == exits.Exit.OK


def test_a_preset_that_does_not_exist_is_refused_with_the_names_of_those_that_do(cli: Invoke) -> None:
    result = cli("config", "preset", "nothing")

    assert result.exit_code == exits.Exit.REFUSED
    assert "cartpole" in result.stderr


MISTAKEN = "behaviors:\n  A:\n    max_steps: -5\n"


def test_a_mistake_has_file_and_line_in_front_of_it(cli: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(MISTAKEN, encoding="utf-8")
    place = f"{file}:3: behaviors.A.max_steps: "

    stored = cli("config", "create", "mistaken", str(file))
    created = cli("run", "create", str(file))
    changed = cli("run", "create", str(file), "--set", "behaviors.A.max_steps=-1")

    assert {each.exit_code for each in (stored, created, changed)} == {exits.Exit.REFUSED}
    assert [line.startswith(place) for line in stored.stderr.splitlines()] == [False, True]
    assert [line.startswith(place) for line in created.stderr.splitlines()] == [False, True]
    assert [line.startswith("  behaviors.A.max_steps: ") for line in changed.stderr.splitlines()] == [False, True]


def test_a_warning_has_file_and_line_in_front_of_it(cli: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "fast.yaml"
    file.write_text("behaviors:\n  A:\n    hyperparameters: {learning_rate: 1.0}\n", encoding="utf-8")

    planned = cli("run", "create", str(file), "--validate-only")

    assert planned.stderr.startswith(f"{file}:3: Warning: behaviors.A.hyperparameters.learning_rate: ")


def test_a_problem_of_an_upgraded_file_has_its_line_in_the_new_file(cli: Invoke, tmp_path: Path) -> None:
    target = tmp_path / "new.yaml"

    result = cli("config", "upgrade", "-", "-o", str(target), input=FLAT.replace("colour: red", "max_steps: -5"))

    [problem] = [line for line in result.stderr.splitlines() if line.startswith("! ")]
    line = int(problem.removeprefix(f"! {target}:").partition(":")[0])
    assert target.read_text(encoding="utf-8").splitlines()[line - 1].strip() == "max_steps: -5"


def test_a_key_is_explained_without_a_server(cli: Invoke) -> None:
    result = cli("config", "reference", "memory.sequence_length")

    assert result.exit_code == 0
    title, _, empty, facts, text, *_ = result.output.splitlines()
    assert (title, empty) == ("behaviors.NAME.network_settings.memory", "")
    assert facts == "  sequence_length: whole number, ≥ 1, ≤ 100,000, default 64"
    assert text.startswith("      Steps of one agent through which gradients flow back")


def test_a_key_that_is_not_there_is_an_error(cli: Invoke) -> None:
    result = cli("config", "reference", "hidden_unitz")

    assert result.exit_code == 2
    assert "no section, key or trainer is called 'hidden_unitz'" in result.output


def test_an_installation_that_reads_no_configurations_says_what_it_lacks() -> None:
    program = "import sys; sys.modules['pydantic'] = None; from ludus.__main__ import main; main()"
    command = [sys.executable, "-c", program, "config", "reference"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    reason = "`ludus config reference` needs the extra `collect` (pydantic is missing)"
    assert done.stderr == f"Error: {reason}: pip install 'ludus[collect]'\n"
