"""`ludus contract`: tests a simulator client, in any language, against scenarios of the protocol."""

import sys

import click

from ludus.cli.exits import INTERRUPTED, Exit, sigterm_interrupts
from ludus.cli.options import option, visual_encoder_option
from ludus.cli.render import echo
from ludus.sdk.contract.kit import SCENARIOS, Scenario, try_client


def _listed(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        for scenario in SCENARIOS:
            echo(scenario.name)
        ctx.exit()


@click.command(options_metavar="[OPTIONS] --")
@click.argument("command", metavar="CMD [ARGUMENTS]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_listed, help="Print the scenarios' names."
)
@click.option(
    "--only",
    metavar="NAME",
    type=click.Choice([scenario.name for scenario in SCENARIOS]),
    multiple=True,
    help="Try only this scenario. Can be given several times.",
)
@option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=60.0,
    help="Longest time for a scenario; then the client and all that it started is ended.",
)
@visual_encoder_option
def contract(command: tuple[str, ...], only: tuple[str, ...], timeout: float, vis_encode_type: str) -> None:
    """Test a simulator client: start CMD once for each scenario, and evaluate what it does.

    \b
        ludus contract -- ./my-client
        ludus contract --only "begins new episodes after a reset" -- node client.js
        ludus contract -- ./my-client --address {server} --join {run}

    `--run contract --server HOST:PORT` is appended to CMD, unless it has the places {run} or {server}, which are filled
    in. The environment has the same as LUDUS_RUN and LUDUS_SIMULATOR_SERVER; proxies, and other variables LUDUS_*, are
    left out.

    The client needs a game with one behavior, at least one agent and episodes shorter than 100 steps. It must end with
    exit code 0 exactly when the run has finished. Each scenario is one line: OK, or FAIL with the rule, its section of
    the protocol's page (README.md of `ludus proto DIR`) and what came instead; the client's last lines follow.

    \b
    Exit codes:
      0  the client passes every scenario
      1  it fails one, or cannot be started
      2  the command line is wrong
    """
    chosen = [scenario for scenario in SCENARIOS if not only or scenario.name in only]
    try:
        with sigterm_interrupts():
            passed = sum(_passes(scenario, command, timeout, vis_encode_type) for scenario in chosen)
    except OSError as error:
        raise click.ClickException(f"{command[0]} cannot be started: {error.strerror or error}") from None
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    echo(f"{passed} of {len(chosen)} OK")
    sys.exit(Exit.OK if passed == len(chosen) else Exit.REFUSED)


def _passes(scenario: Scenario, command: tuple[str, ...], timeout: float, visual_encoder: str) -> bool:
    """Try a scenario, print the verdict, and return whether the client passes."""
    verdict = try_client(scenario, command, timeout, visual_encoder=visual_encoder)
    echo(f"{'FAIL' if verdict.problems else 'OK  '} {verdict.sentence}  ({verdict.seconds:.1f} s)")
    if verdict.problems:
        for line in verdict.printed:
            echo(f"       | {line}")
    return not verdict.problems
