"""Options that several commands share, and the types of their values."""

import math
import re
from pathlib import Path
from typing import Any, Final

import click
import yaml

from ludus.cli.require import Requirement, parse_requirement
from ludus.protocol.credentials import CLIENT_TOKEN, SIMULATOR_TOKEN
from ludus.protocol.options import DEFAULT_SERVER

SERVER_VARIABLE: Final = "LUDUS_SIMULATOR_SERVER"


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A duration: `90`, `90s`, `30m`, `1h30m`. The value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the text."""
        if isinstance(value, int | float):
            return float(value)
        parts = re.fullmatch(
            r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", value
        )
        if not value or parts is None:
            self.fail(f"{value!r} is not a duration; write 90s, 30m or 1h30m", param, ctx)
        amounts = [float(amount or 0) for amount in parts.groups()]
        return sum(amount * length for amount, length in zip(amounts, (86400, 3600, 60, 1), strict=True))


class Assignment(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """`dotted.path=value`. The value is read as YAML, so `3`, `true`, `null` and `[1, 2]` are what they look like."""

    name = "path=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Read the text."""
        if isinstance(value, tuple):
            return value
        path, equals, text = value.partition("=")
        if not equals or not path.strip():
            self.fail(f"{value!r} has no '='; write for instance behaviors.CartPole.max_steps=100000", param, ctx)
        try:
            return path.strip(), yaml.safe_load(text)
        except yaml.YAMLError:
            self.fail(f"the value of {path.strip()} is not valid YAML: {text!r}", param, ctx)


class Finite(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A number that is neither infinite nor NaN."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the text."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number", param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class RequirementType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """`[Behavior:]KEY op VALUE`."""

    name = "requirement"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Requirement:
        """Read the text."""
        if isinstance(value, Requirement):
            return value
        try:
            return parse_requirement(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


require_option = click.option(
    "--require",
    "requirements",
    type=RequirementType(),
    multiple=True,
    help="A metric's newest value, as in 'reward>=475' or 'Striker:reward>=0.8'. Can be given several times.",
)
timeout_option = click.option("--timeout", type=Duration(), help="Longest time to wait, as in 90s, 30m, 1h30m.")
wait_option = click.option(
    "--wait", "wait_", is_flag=True, help="Wait for the end; the exit codes are those of `ludus run wait`."
)
keep_waiting_option = click.option(
    "--keep-waiting", is_flag=True, help="Keep waiting for a run that is paused, or that gets no simulator or worker."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

SEED: Final = click.IntRange(0, 2**31 - 1)

run_name_option = click.option("--name", help="Name of the run.")
run_tag_option = click.option("--tag", "tags", multiple=True, help="Tag of the run. Can be given several times.")
overrides_option = click.option(
    "--set", "overrides", type=Assignment(), multiple=True, help="Change a key, as in behaviors.X.max_steps=1000."
)
priority_option = click.option(
    "--priority", type=int, default=0, help="Runs of a project with a higher priority are trained first."
)

gateway_option = click.option(
    "--server",
    default=DEFAULT_SERVER,
    show_default=True,
    envvar=SERVER_VARIABLE,
    show_envvar=True,
    metavar="HOST:PORT",
    help="The gateway.",
)
token_option = click.option(
    "--token", help=f"The gateway's bearer token; better given as {SIMULATOR_TOKEN}, else {CLIENT_TOKEN} is taken."
)
ca_file_option = click.option(
    "--ca-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Certificate authority (PEM) of a gateway that speaks TLS.",
)
connect_timeout_option = click.option(
    "--connect-timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Seconds to keep trying while the gateway cannot be reached.",
)


def name_of(file: Path) -> str:
    """Make a name of a file's: letters, digits, dots, underscores and hyphens, the first one of the first two."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", file.stem).lstrip("._-")[:200] or "file"
