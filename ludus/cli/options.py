"""Options that several commands share, and the types of their values: durations, requirements, values as in YAML."""

import functools
import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import click
import yaml

from ludus.collector.visual_encoders import DEFAULT_ENCODER, MINIMUM_SIZES
from ludus.metric_keys import full_key
from ludus.protocol.credentials import CLIENT_TOKEN, SIMULATOR_TOKEN
from ludus.protocol.options import DEFAULT_SERVER, GATEWAY_VARIABLE

Command = TypeVar("Command", bound=Callable[..., object])
_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+\Z")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(
    r"\s*(?:(?P<behavior>[^:<>!]+):)?\s*(?P<key>[^:<>=!]+?)\s*(?P<operator>>=|<=|!=|==|=|>|<)(?P<value>[^<>=!]+)"
)


@dataclass(frozen=True)
class Requirement:
    """`[Behavior:]KEY op VALUE`."""

    text: str
    behavior: str | None
    key: str
    operator: str
    value: float

    def holds(self, actual: float) -> bool:
        """Compare. NaN meets no requirement."""
        return actual == actual and _OPERATORS[self.operator](actual, self.value)  # noqa: PLR0124  # false for NaN


def parse_requirement(text: str) -> Requirement:
    """Read a requirement. Raises ValueError with a sentence."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a requirement; write for instance 'reward>=475' or 'Striker:reward>=0.8'")
    try:
        value = float(match["value"])
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ValueError(f"{match['value'].strip()!r} in {text!r} is not a number")
    behavior = match["behavior"].strip() if match["behavior"] else None
    return Requirement(text.strip(), behavior, full_key(match["key"]), match["operator"], value)


class _Loader(yaml.SafeLoader):
    """SafeLoader with these two rules."""

    def construct_number(self, node: yaml.ScalarNode) -> float:
        """Return the number behind a text with an exponent."""
        text = node.value.replace("_", "")
        number = float(text)
        if math.isinf(number):
            raise ValueError(f"{node.value} is larger than any number")
        return int(number) if "." not in text and number.is_integer() else number

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """Return a text as it is written."""
        return str(self.construct_scalar(node))


_Loader.add_implicit_resolver("!number", _NUMBER, list("-+.0123456789"))
_Loader.add_constructor("!number", _Loader.construct_number)
for _kind in ("timestamp", "value"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_text)


def read_yaml(text: str) -> object:
    """Read a value. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506  a SafeLoader
    except (ValueError, OverflowError, RecursionError) as error:  # 0b3, 1e999: of a number's form, but none
        raise yaml.YAMLError(str(error)) from error


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """The type of a value that a function reads from its text. The message of its ValueError is the error."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self.read = read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Read the text; a default is a value already."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parsed(name: str) -> Callable[[Callable[[str], object]], Parsed]:
    """Make the type of a value, which errors call by this name, of the function that reads its text."""
    return functools.partial(Parsed, name)


@parsed("duration")
def duration(text: str) -> float:
    """Read a duration in seconds: `90`, `90s`, `30m`, `1h30m`."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", text)
    if not text or parts is None:
        raise ValueError(f"{text!r} is not a duration; write 90s, 30m or 1h30m")
    amounts = [float(amount or 0) for amount in parts.groups()]
    return sum(amount * length for amount, length in zip(amounts, (86400, 3600, 60, 1), strict=True))


@parsed("path=value")
def assignment(text: str) -> tuple[str, object]:
    """Read `dotted.path=value`; the value as YAML, so that `3`, `1e-3`, `true`, `null` and `[1, 2]` are no texts."""
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ValueError(f"{text!r} has no '='; write for instance behaviors.CartPole.max_steps=100000")
    try:
        return path, read_yaml(value)
    except yaml.YAMLError:
        raise ValueError(f"the value of {path} is not valid YAML: {value!r}") from None


@parsed("number")
def finite(text: str) -> float:
    """Read a number that is neither infinite nor NaN."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a finite number")
    return number


REQUIREMENT: Final = Parsed("requirement", parse_requirement)
"""`[Behavior:]KEY op VALUE`."""
FILE: Final = click.Path(dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)
SEED: Final = click.IntRange(0, 2**31 - 1)


class _Existing(click.Path):
    """The type of a file that is read more than once, or as a whole: no pipe and no device."""

    def __init__(self, *, dir_okay: bool) -> None:
        super().__init__(exists=True, dir_okay=dir_okay, path_type=Path)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Check the file."""
        path = super().convert(value, param, ctx)
        if isinstance(path, Path) and not (path.is_file() or path.is_dir()):
            self.fail(f"{path} is a pipe or a device; name a file", param, ctx)
        return path


EXISTING_FILE: Final = _Existing(dir_okay=False)
EXISTING: Final = _Existing(dir_okay=True)
"""A file or a folder."""


option = functools.partial(click.option, show_default=True)
"""An option that shows its default in the help."""


def filter_option(example: str) -> Callable[[Command], Command]:
    """Return the option `--filter` of a list; `example` completes "As in ..."."""
    return click.option("--filter", "filter_", default="", help=f"As in {example}.")


def limit_option(items: str, default: int = 20) -> Callable[[Command], Command]:
    """Return the option `--limit` of a list of `items`."""
    limit = click.IntRange(min=1)
    return option("--limit", type=limit, default=default, help=f"Maximum number of {items}.")


require_option = click.option(
    "--require",
    "requirements",
    type=REQUIREMENT,
    multiple=True,
    help="A metric's newest value, as in 'reward>=475' or 'Striker:reward>=0.8'. Can be given several times.",
)
timeout_option = click.option("--timeout", type=duration, help="Longest time to wait, as in 90s, 30m, 1h30m.")
wait_option = click.option(
    "--wait", "wait_", is_flag=True, help="Wait for the end; the exit codes are those of `ludus run wait`."
)
keep_waiting_option = click.option(
    "--keep-waiting",
    is_flag=True,
    help="Keep waiting for a run that is paused, that gets no simulator or worker, or lacks a required metric.",
)
cancel_option = click.option(
    "--cancel-on-interrupt", is_flag=True, help="Cancel the run if this command gets Ctrl-C or SIGTERM while it waits."
)
fail_on_warning_option = click.option(
    "--fail-on-warning", is_flag=True, help="A run that succeeds with findings about its learning fails the command."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

run_name_option = click.option("--name", help="Name of the run.")
run_tag_option = click.option("--tag", "tags", multiple=True, help="Tag of the run. Can be given several times.")
overrides_option = click.option(
    "--set", "overrides", type=assignment, multiple=True, help="Change a key, as in behaviors.X.max_steps=1000."
)
priority_option = click.option(
    "--priority", type=int, default=0, help="Runs of a project with a higher priority are trained first."
)

count_option = option("--count", type=click.IntRange(1, 1000), default=1, help="Number of simulator processes.")
envs_option = option(
    "--envs",
    type=click.IntRange(1, 10_000),
    default=1,
    help="Games per process. A process waits for its slowest game: more processes waste less time.",
)
games_gateway_option = click.option(
    "--gateway",
    metavar="HOST:PORT",
    envvar=GATEWAY_VARIABLE,
    help="Where the simulators of --game join. [the server's host, port 7070]",
)
gateway_option = option(
    "--server",
    default=DEFAULT_SERVER,
    envvar=GATEWAY_VARIABLE,
    show_envvar=True,
    metavar="HOST:PORT",
    help="The gateway.",
)
token_option = click.option(
    "--token", help=f"The gateway's bearer token; better given as {SIMULATOR_TOKEN}, else {CLIENT_TOKEN} is taken."
)
ca_file_option = click.option(
    "--ca-file", type=EXISTING_FILE, help="Certificate authority (PEM) of a gateway that speaks TLS."
)
connect_timeout_option = option(
    "--connect-timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    help="Seconds to keep trying while the gateway cannot be reached.",
)


visual_encoder_option = option(
    "--vis-encode-type",
    type=click.Choice([*MINIMUM_SIZES]),
    default=DEFAULT_ENCODER,
    help="The visual encoder of the run, which says how small pictures may be.",
)


def record_option(recorded: str, more: str = "") -> Callable[[Command], Command]:
    """Return the option `--record` of a command that plays; `recorded` is the object of its help."""
    help_ = f"Record {recorded} to FILE (.npz), a demonstration to imitate. Appends to an existing file.{more}"
    return click.option("--record", metavar="FILE", type=FILE, help=help_)


class TakesTheRest(click.Command):
    """A command whose last option takes everything that follows, as `mlagents-learn`'s does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set `env_args`, and parse what stands before its option."""
        options, game_arguments = args, list[str]()
        if REST in args:
            position = args.index(REST)
            options, game_arguments = args[:position], args[position + 1 :]
        unread = super().parse_args(ctx, options)
        ctx.params["env_args"] = tuple(game_arguments)
        return unread


REST: Final = "--env-args"
env_args_option = click.option(REST, "env_args", metavar="...", help="Everything after it goes to the build.")
