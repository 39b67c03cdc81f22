"""The command line and the file of `ludus learn`, as `mlagents-learn` reads them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.cli.learn_options import LearnError, LearnSettings, parse, read_settings
from tests.ludus.cli.conftest import DOCUMENT, Invoke


def told(folder: Path, *arguments: str, document: Any = None) -> LearnSettings:
    if document is not None:
        (folder / "told.yaml").write_text(yaml.safe_dump(document))
        arguments = ("told.yaml", *arguments)
    return read_settings(parse(arguments))


def test_flags_win_over_the_file_and_the_file_over_defaults(folder: Path) -> None:
    document = {**DOCUMENT, "env_settings": {"num_envs": 3, "base_port": 6000}, "engine_settings": {"width": 100}}

    settings = told(folder, "--env", "game", "--base-port", "5005", document=document)

    assert settings.environment.num_envs == 3
    assert settings.environment.base_port == 5005, "typed, though it is the default"
    assert (settings.engine.width, settings.engine.height) == (100, 84)


@pytest.mark.parametrize("flag", ["--run", "--run-i", "--run-id"])
def test_flags_may_be_shortened(folder: Path, flag: str) -> None:
    assert told(folder, flag, "first").checkpoints.run_id == "first"


@pytest.mark.parametrize(("flag", "value"), [("--se", "seed"), ("--ca", "capture_frame_rate"), ("--tor", None)])
def test_flags_of_ludus_leave_the_short_forms_of_mlagents_alone(folder: Path, flag: str, value: str | None) -> None:
    if value is None:
        with pytest.raises(SystemExit):  # ambiguous there, too: --torch, --torch-device
            parse([flag])
    else:
        assert getattr(parse([flag, "3"]), value) == 3


def test_flags_of_ludus_may_stand_anywhere_but_behind_env_args(folder: Path) -> None:
    typed = parse(["ppo.yaml", "--server", "http://one", "--env", "game", "--env-args", "--server", "http://two"])

    assert (typed.server, typed.trainer_config_path) == ("http://one", "ppo.yaml")
    assert typed.env_args == ["--server", "http://two"]


def test_everything_behind_env_args_goes_to_the_build(folder: Path) -> None:
    settings = told(folder, "ppo.yaml", "--env", "game", "--env-args", "--run-id", "theirs", "-x")

    assert settings.environment.env_args == ["--run-id", "theirs", "-x"]
    assert settings.checkpoints.run_id == "ppo"


@pytest.mark.parametrize(
    "arguments",
    [["--lesson", "1"], ["--worker-id", "1"], ["--num-envs", "many"], ["--seed"], ["a.yaml", "b.yaml"], ["--cpu"]],
)
def test_a_wrong_command_line_exits_with_2(cli: Invoke, arguments: list[str]) -> None:
    result = cli("learn", *arguments)

    assert result.exit_code == 2
    assert "usage: ludus learn" in result.stderr


def test_numbers_that_mlagents_does_not_type_are_errors_of_the_settings(folder: Path, cli: Invoke) -> None:
    result = cli("learn", "ppo.yaml", "--timeout-wait", "soon")

    assert result.exit_code == 1
    assert "'soon' is no int for EnvironmentSettings.timeout_wait" in result.stderr


@pytest.mark.parametrize(
    ("section", "name"),
    [("env_settings", "EnvironmentSettings"), ("engine_settings", "EngineSettings"), ("checkpoint_settings", "Check")],
)
def test_unknown_keys_of_the_sections_are_refused_as_in_mlagents(folder: Path, section: str, name: str) -> None:
    with pytest.raises(LearnError, match=f"The option nonsense was specified in your YAML file for {name}"):
        told(folder, document={**DOCUMENT, section: {"nonsense": 1}})


def test_several_builds_need_a_path(folder: Path) -> None:
    with pytest.raises(LearnError, match="num_envs must be 1 if env_path is not set"):
        told(folder, "ppo.yaml", "--num-envs", "2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "Config file could not be found at /"),
        (b"\xff\xfe", "There was an error decoding Config file"),
        (b"a: [1", "Error parsing yaml file"),
        (b"", "is empty"),
        (b"- a", "is no mapping"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(folder: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (folder / "bad.yaml").write_bytes(content)

    with pytest.raises(LearnError, match=message):
        told(folder, "bad.yaml")


@pytest.mark.parametrize(
    ("typed", "written", "resume", "initialize_from"),
    [
        (["--resume"], {"initialize_from": "old"}, True, None),
        (["--initialize-from", "old"], {"resume": True}, False, "old"),
        (["--initialize-from", "old", "--resume"], {}, True, None),
        ([], {"initialize_from": "old", "resume": True}, True, None),
        ([], {"initialize_from": "old"}, False, "old"),
        (["--load"], {}, True, None),
        ([], {"load_model": True}, True, None),
    ],
)
def test_of_resume_and_initialize_from_the_typed_one_counts_else_resume(
    folder: Path, typed: list[str], written: dict[str, Any], resume: bool, initialize_from: str | None
) -> None:
    settings = told(folder, *typed, document={**DOCUMENT, "checkpoint_settings": written})

    assert settings.checkpoints.resume is resume
    assert settings.checkpoints.initialize_from == initialize_from
    both = len(typed) + len(written) > 1 and "old" in [*typed, *written.values()]
    assert bool(settings.warnings) == (both or "--load" in typed or "load_model" in written)


def test_deterministic_holds_for_the_behaviors_that_are_listed(folder: Path) -> None:
    settings = told(folder, "ppo.yaml", "--deterministic", "--torch-device", "cpu")

    assert settings.document["behaviors"]["CartPole"]["network_settings"] == {"deterministic": True}
    assert settings.document["torch_settings"] == {"device": "cpu"}


def test_flags_that_were_removed_are_warned_of(folder: Path) -> None:
    settings = told(folder, "ppo.yaml", "--torch", "--tensorflow", "--train")

    assert len(settings.warnings) == 3
