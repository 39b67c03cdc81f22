"""The command line of `mlagents-learn` 1.1.0 and its configuration file, and their precedence in `ludus learn`.

Built-in values, then the file's, then flags that were typed, in rising order. Names, types and messages are
ML-Agents'. This module reads the sections of the file that this machine uses; the server gets and checks everything
else.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_type_hints

import yaml

from ludus.cli.files import Unreadable, read_text
from ludus.json_values import JsonObject
from ludus.protocol.options import GATEWAY_PORT
from ludus.protocol.side_channels import EngineConfiguration

Section = TypeVar("Section")


class LearnError(Exception):
    """Training cannot begin; the message has the reason and the remedy."""


@dataclass(frozen=True)
class EnvironmentSettings:
    """The builds to start: `env_settings`."""

    env_path: str | None = None
    env_args: list[str] | None = None
    base_port: int = 5005
    num_envs: int = 1
    num_areas: int = 1
    timeout_wait: int = 60
    seed: int = -1
    max_lifetime_restarts: int = 10
    restarts_rate_limit_n: int = 1
    restarts_rate_limit_period_s: int = 60

    def check(self) -> None:
        """Raise LearnError where the values don't go together."""
        if self.num_envs > 1 and self.env_path is None:
            raise LearnError("num_envs must be 1 if env_path is not set.")
        if self.num_areas <= 0:
            raise LearnError("num_areas must be set to a positive number >= 1.")


@dataclass(frozen=True)
class EngineSettings(EngineConfiguration):
    """Settings of the game's engine: `engine_settings`."""

    time_scale: float = 20  # without a decimal point in `configuration.yaml`, as in ML-Agents'
    no_graphics: bool = False
    no_graphics_monitor: bool = False


@dataclass(frozen=True)
class CheckpointSettings:
    """Id of the run, and folder of its results: `checkpoint_settings`."""

    run_id: str = "ppo"
    initialize_from: str | None = None
    load_model: bool = False
    resume: bool = False
    force: bool = False
    train_model: bool = False
    inference: bool = False
    results_dir: str = "results"


@dataclass(frozen=True)
class LearnSettings:
    """All settings of one call of `ludus learn`."""

    document: JsonObject
    """The configuration file, flags put into it, without the sections below; empty without a file."""
    environment: EnvironmentSettings
    engine: EngineSettings
    checkpoints: CheckpointSettings
    warnings: list[str] = field(default_factory=list)
    remote_env: bool = False
    """Whether this command launches no game."""

    @property
    def folder(self) -> Path:
        """Folder of the results."""
        return Path(self.checkpoints.results_dir) / self.checkpoints.run_id

    @property
    def initial_folder(self) -> Path | None:
        """Folder of the results to begin with; None without."""
        name = self.checkpoints.initialize_from
        return None if name is None else Path(self.checkpoints.results_dir) / name

    def local(self) -> dict[str, JsonObject]:
        """Return the sections that this machine uses, as `configuration.yaml` has them."""
        return {
            "env_settings": dataclasses.asdict(self.environment),
            "engine_settings": dataclasses.asdict(self.engine),
            "checkpoint_settings": dataclasses.asdict(self.checkpoints),
        }


_SECTIONS: Final[Mapping[str, type]] = {
    "env_settings": EnvironmentSettings,
    "engine_settings": EngineSettings,
    "checkpoint_settings": CheckpointSettings,
}
_FLAG: Final = "store_true"


OWN_HELP: Final = f"""\
Ludus' own, which can't be shortened:
  --server URL          address of a Ludus server [LUDUS_SERVER, else one is started]
  --token TOKEN         the server's bearer token; better given as LUDUS_TOKEN
  --gateway HOST:PORT   where it takes games [LUDUS_SIMULATOR_SERVER, else its host, port {GATEWAY_PORT}]
  --ca-file FILE        certificate authority (PEM) of a gateway that speaks TLS
  --remote-env          launch no game: games join from other machines

"""


def read_settings(typed: argparse.Namespace) -> LearnSettings:
    """Return the settings of the file and the flags. Raises LearnError."""
    flags = {key: value for key, value in vars(typed).items() if value is not None}
    path = Path(flags["trainer_config_path"]) if "trainer_config_path" in flags else None
    document = {} if path is None else read_document(path)
    sections: dict[str, JsonObject] = {}
    for name, kind in _SECTIONS.items():
        section = document.pop(name, {})
        if not isinstance(section, dict):
            raise LearnError(f"Unsupported config {section} for {kind.__name__}.")
        if unknown := [key for key in section if key not in get_type_hints(kind)]:
            where = f"in your YAML file for {kind.__name__}"
            raise LearnError(f"The option {unknown[0]} was specified {where}, but is invalid.")
        sections[name] = dict(section)
    removed = {
        "train_model": "The --train option has been deprecated. Train mode is now the default.",
        "torch": "The --torch option was removed: PyTorch is the only framework.",
        "tensorflow": "The --tensorflow option was removed: PyTorch is the only framework.",
    }
    warnings = [warning for flag, warning in removed.items() if flags.get(flag)]
    _choose_beginning(sections["checkpoint_settings"], flags, warnings)
    for section, kind in zip(sections.values(), _SECTIONS.values(), strict=True):
        section |= {key: flags[key] for key in flags if key in get_type_hints(kind)}
    environment = _build(EnvironmentSettings, sections["env_settings"])
    environment.check()
    if "torch_device" in flags:
        document["torch_settings"] = {**_mapping(document.get("torch_settings")), "device": flags["torch_device"]}
    if flags.get("debug"):
        document["debug"] = True
    if flags.get("deterministic"):
        behaviors = _mapping(document.get("behaviors"))
        for behavior in (section for section in behaviors.values() if isinstance(section, dict)):
            behavior["network_settings"] = {**_mapping(behavior.get("network_settings")), "deterministic": True}
    return LearnSettings(
        document,
        environment,
        _build(EngineSettings, sections["engine_settings"]),
        _build(CheckpointSettings, sections["checkpoint_settings"]),
        warnings,
        bool(typed.remote_env),
    )


def read_document(path: Path) -> JsonObject:
    """Read a configuration file. Raises LearnError."""
    try:
        document = yaml.safe_load(read_text(path.absolute()))
    except Unreadable as error:
        if not path.exists():
            raise LearnError(f"Config file could not be found at {path.absolute()}.") from error
        raise LearnError(f"There was an error decoding Config file from {path}. {error}") from error
    except RecursionError as error:
        raise LearnError(f"The config file {path} is nested too deeply; no configuration needs that.") from error
    except yaml.YAMLError as error:
        raise LearnError(f"Error parsing yaml file. Please check for formatting errors. {error}") from error
    if document is None:
        raise LearnError(f"The config file {path} is empty; it needs at least `behaviors`.")
    if not isinstance(document, dict):
        raise LearnError(f"The config file {path} is no mapping; it needs at least `behaviors`.")
    return document


def _choose_beginning(section: JsonObject, flags: JsonObject, warnings: list[str]) -> None:
    """Keep one of `resume` and `initialize_from`: the typed one, else `resume`."""
    if section.pop("load_model", False) or flags.pop("load_model", False):
        warnings.append("The --load option has been deprecated. Please use the --resume option instead.")
        flags.setdefault("resume", True)
    typed = {key for key in ("resume", "initialize_from") if key in flags}
    if not ((flags.get("resume") or section.get("resume")) and {*flags, *section} >= {"initialize_from"}):
        return
    if typed == {"initialize_from"}:
        section.pop("resume", None)
        warnings.append("Both resume and initialize_from are set; --initialize-from was typed and counts.")
    elif "initialize_from" in flags or section.get("initialize_from") is not None:
        section.pop("initialize_from", None)
        flags.pop("initialize_from", None)
        warnings.append("Both resume and initialize_from are set; the run is resumed.")


def _mapping(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _build(kind: type[Section], values: Mapping[str, Any]) -> Section:
    """Return a section with its values converted as ML-Agents does."""
    hints = get_type_hints(kind)
    converted: dict[str, Any] = {}
    for key, value in values.items():
        members = get_args(hints[key])
        optional = type(None) in members
        plain = next(member for member in members if member is not type(None)) if optional else hints[key]
        try:
            if value is None and optional:
                converted[key] = None
            elif plain in {int, float, bool, str}:
                converted[key] = plain(value)
            else:
                converted[key] = [str(item) for item in value]
        except (TypeError, ValueError) as error:
            name = getattr(plain, "__name__", "list")
            raise LearnError(f"{value!r} is no {name} for {kind.__name__}.{key}.") from error
    return kind(**converted)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read a command line; exits with code 2 where it is wrong, and with 0 after `--help`.

    Ludus' own flags are read first and by their whole names, so that ML-Agents' flags can be abbreviated: `--se`.
    """
    parser = argparse.ArgumentParser(prog="ludus learn", add_help=False, allow_abbrev=False)
    for name in ("--server", "--token", "--gateway"):
        parser.add_argument(name)
    parser.add_argument("--ca-file", type=Path)
    parser.add_argument("--remote-env", action=_FLAG)
    # ML-Agents' --env-args, or an abbreviation of it, takes the rest of the command line.
    takes_rest = [len(argument) > len("--env") and "--env-args".startswith(argument) for argument in arguments]
    end = [*takes_rest, True].index(True)
    namespace, unknown = parser.parse_known_args(arguments[:end])
    # The result has only typed flags, so that a typed default still counts.
    parsed = argparse.ArgumentParser(
        prog="ludus learn",
        argument_default=argparse.SUPPRESS,
        description="Train as mlagents-learn does, on a Ludus server (--server), or on one that is started for it.",
        epilog=f"{OWN_HELP}Exit codes: 0 at the end and after Ctrl-C, 1 for errors, 2 for a wrong command line.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parsed.add_argument("trainer_config_path", nargs="?", help="The configuration file.")
    add = parsed.add_argument
    add("--env", dest="env_path", help="The Unity executable; without it the Unity Editor is waited for.")
    add("--load", dest="load_model", action=_FLAG, help=argparse.SUPPRESS)
    add("--resume", action=_FLAG, help="Go on with the run of this run ID.")
    add("--deterministic", action=_FLAG, help="Act by the mean, or the likeliest choice.")
    add("--force", action=_FLAG, help="Start again even if results of this run ID exist.")
    add("--run-id", help="Name of the run and of its folder in the results. [ppo]")
    add("--initialize-from", metavar="RUN_ID", help="Begin with the networks of this run.")
    add("--seed", type=int, help="Seed of everything random; -1: drawn. [-1]")
    add("--train", dest="train_model", action=_FLAG, help=argparse.SUPPRESS)
    add(
        "--inference",
        action=_FLAG,
        help="Play without learning, until Ctrl-C; with --resume as far as the run had learned.",
    )
    add("--base-port", type=int, help="Port of the first build on this machine. [5005]")
    add("--num-envs", type=int, help="How many builds to start. [1]")
    add("--num-areas", type=int, help="Training areas in each build. [1]")
    add("--debug", action=_FLAG, help="Log the trainer's every step (ludus run logs RUN).")
    add("--env-args", nargs=argparse.REMAINDER, help="Everything behind it goes to the build.")
    add("--max-lifetime-restarts", help="Restarts of each build in all; -1: no limit. [10]")
    add("--restarts-rate-limit-n", help="Restarts of each build within the period below; -1: no limit. [1]")
    add("--restarts-rate-limit-period-s", help="Length of that period. [60]")
    add("--torch", action=_FLAG, help=argparse.SUPPRESS)
    add("--tensorflow", action=_FLAG, help=argparse.SUPPRESS)
    add("--results-dir", help="Where the results of all runs lie. [results]")
    add("--timeout-wait", help="Seconds that a build may take for a step. [60]")
    engine = parsed.add_argument_group("engine")
    engine.add_argument("--width", type=int, help="Width of the window in pixels. [84]")
    engine.add_argument("--height", type=int, help="Height of the window in pixels. [84]")
    engine.add_argument("--quality-level", type=int, help="Unity's quality level. [5]")
    engine.add_argument("--time-scale", type=float, help="Seconds of the game's time in a second. [20]")
    engine.add_argument("--target-frame-rate", type=int, help="Frames to draw in a second; -1: all. [-1]")
    engine.add_argument("--capture-frame-rate", type=int, help="Frames in a second of the game's time. [60]")
    engine.add_argument("--no-graphics", action=_FLAG, help="Start builds without graphics.")
    engine.add_argument("--no-graphics-monitor", action=_FLAG, help="Start the first build with graphics, others not.")
    torch = parsed.add_argument_group("torch")
    torch.add_argument("--torch-device", metavar="DEVICE", help="cpu, cuda or cuda:N, on the worker.")
    return parsed.parse_args([*unknown, *arguments[end:]], namespace)
