"""`ludus contract`, `ludus fake-server`: test clients of the protocol, in any language."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import click
import grpc

from ludus.cli.exits import INTERRUPTED, Exit, sigterm_interrupts
from ludus.cli.files import read_text
from ludus.cli.options import EXISTING_FILE, assignment, option, parsed, visual_encoder_option
from ludus.cli.render import echo
from ludus.protocol.options import MAX_MESSAGE_BYTES
from ludus.sdk.contract.fake_server import ENDINGS, Behaviour, FakeServer
from ludus.sdk.contract.kit import SCENARIOS, WEBSOCKET_PLACE, WEBSOCKET_SCENARIOS, scenarios_of, try_client
from ludus.sdk.contract.websocket import WebSocketDoor


def _listed(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        for scenario in (*SCENARIOS, *WEBSOCKET_SCENARIOS):
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
    type=click.Choice([scenario.name for scenario in (*SCENARIOS, *WEBSOCKET_SCENARIOS)]),
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
        ludus contract -- ./my-client --url {websocket} --join {run}      (ws://HOST:PORT)

    A client with {websocket} has five scenarios more: pings, fragments, and what else is in frames.

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
    possible = {scenario.name: scenario for scenario in scenarios_of(command)}
    if unheard := [name for name in only if name not in possible]:
        raise click.UsageError(f"--only {unheard[0]!r} is for clients with WebSockets: CMD has no {WEBSOCKET_PLACE}")
    chosen = [scenario for name, scenario in possible.items() if not only or name in only]
    passed = 0
    try:
        with sigterm_interrupts():
            for scenario in chosen:
                verdict = try_client(scenario, command, timeout, visual_encoder=vis_encode_type)
                echo(f"{'FAIL' if verdict.problems else 'OK  '} {verdict.sentence}  ({verdict.seconds:.1f} s)")
                for line in verdict.printed if verdict.problems else ():
                    echo(f"       | {line}")
                passed += not verdict.problems
    except OSError as error:
        raise click.ClickException(f"{command[0]} cannot be started: {error.strerror or error}") from None
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    echo(f"{passed} of {len(chosen)} OK")
    sys.exit(Exit.OK if passed == len(chosen) else Exit.REFUSED)


TICK_SECONDS: Final = 0.05
WILDCARDS: Final = {"0.0.0.0", "::", "[::]"}  # noqa: S104  compared with


@parsed("file")
def script_type(file: str) -> tuple[tuple[tuple[float, ...], tuple[int, ...]], ...]:
    """Read a file of actions, one JSON object in each line."""
    actions = []
    for number, line in enumerate(read_text(file).splitlines(), 1):
        try:
            action = json.loads(line)
            continuous = tuple(float(value) for value in action.get("continuous", ()))
            discrete = tuple(int(value) for value in action.get("discrete", ()))
        except (ValueError, TypeError, AttributeError, RecursionError):
            example = '{"continuous": [0.5], "discrete": [2]}'
            raise ValueError(f"{file}, line {number} is no action; write for instance {example}") from None
        if any(not -1 <= value <= 1 for value in continuous) or any(value < 0 for value in discrete):
            raise ValueError(f"{file}, line {number}: continuous actions lie in [-1, 1], choices count from 0")
        actions.append((continuous, discrete))
    if not actions:
        raise ValueError(f"{file} holds no action")
    return tuple(actions)


@click.command("fake-server")
@option("--host", default="127.0.0.1", help="Address to listen at.")
@option("--port", type=click.IntRange(0, 65535), default=7070, help="0: any free port.")
@click.option(
    "--websocket-port",
    type=click.IntRange(0, 65535),
    help="Listen for WebSockets, too, on this machine; 0: any free port. [not]",
)
@click.option(
    "--advertise", metavar="HOST", help="Host in the addresses of assignments. [--host, or this machine's name]"
)
@click.option("--token", help="Token that the server demands. [none]")
@click.option("--run", help="Name of the only run. [every name is accepted]")
@click.option("--tls-certificate", type=EXISTING_FILE, help="Speak TLS with this certificate (PEM).")
@click.option("--tls-key", type=EXISTING_FILE, help="Its key.")
@click.option("--tls-client-ca", type=EXISTING_FILE, help="Demand client certificates of this authority (mTLS).")
@click.option(
    "--wait", "waits", type=click.IntRange(min=0), default=0, help="Number of joins to answer with `wait` first."
)
@click.option(
    "--relay", "unreachable", is_flag=True, help="Assign an unreachable address, so that clients must ask for relay."
)
@click.option(
    "--steps", type=click.IntRange(min=1), help="End each stream after this number of answered steps. [never]"
)
@option("--ending", type=click.Choice(list(ENDINGS)), default="finished", help="How streams end after --steps.")
@click.option("--reset-every", metavar="N", type=click.IntRange(min=1), help="Reset in place of every n-th answer.")
@click.option("--save-every", metavar="N", type=click.IntRange(min=1), help="Save before every n-th answer.")
@click.option(
    "--parameter",
    "parameters",
    metavar="NAME=VALUE",
    type=assignment,
    multiple=True,
    help="Environment parameter, 1 more after each reset. Can be given several times.",
)
@click.option(
    "--delay", "delay_seconds", type=click.FloatRange(min=0), default=0.0, help="Seconds that each answer takes."
)
@click.option("--split", is_flag=True, help="Answer the agents of a step one by one, the last one first.")
@click.option(
    "--unknown-messages", "future", is_flag=True, help="Send a message of an unknown kind before each answer."
)
@click.option(
    "--script",
    metavar="FILE",
    type=script_type,
    default=(),
    help="Actions to take in turn, one JSON object a line. [random]",
)
@visual_encoder_option
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, help="Seed of the actions, and of simulators.")
@click.option(
    "--max-message-bytes",
    type=click.IntRange(min=1024),
    default=MAX_MESSAGE_BYTES,
    help="Maximum size of a client's message.",
)
@option("--step-timeout", "step_timeout_seconds", type=click.FloatRange(min=0.1), default=60.0, help="In seconds.")
@click.option("--streams", type=click.IntRange(min=1), help="Exit after this number of streams. [at Ctrl-C]")
@click.option("--quiet", is_flag=True, help="Print only violations.")
def fake_server(
    *,
    host: str,
    port: int,
    websocket_port: int | None,
    advertise: str | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    parameters: tuple[tuple[str, object], ...],
    streams: int | None,
    quiet: bool,
    **settings: Any,
) -> None:
    """A server for testing clients: gateway and collector in one, without training.

    Prints each message in words, makes every check of a real server, and answers with random valid actions. For
    instance `ludus fake-server --steps 100 --reset-every 30 --parameter size=3 --streams 1`. The contract is
    proto/README.md, which `ludus proto DIR` writes.

    \b
    Exit codes:
      0  no client broke the contract
      1  one did, or the port cannot be had
      2  the command line is wrong
    """
    if (tls_certificate is None) != (tls_key is None) or (tls_client_ca is not None and tls_certificate is None):
        raise click.UsageError("--tls-certificate and --tls-key belong together, and --tls-client-ca to both")
    if advertise is None and host in WILDCARDS:
        advertise = socket.gethostname()
    values = dict[str, float]()
    for name, value in parameters:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise click.UsageError(f"--parameter {name}: {value!r} is not a number")
        values[name] = float(value)
    tls = None
    if tls_certificate is not None and tls_key is not None:
        authority = None if tls_client_ca is None else tls_client_ca.read_bytes()
        pair = (tls_key.read_bytes(), tls_certificate.read_bytes())
        tls = grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
    behaviour = Behaviour(advertise=advertise, parameters=values, tls=tls, **settings)

    def say(sentence: str) -> None:
        if not quiet or sentence.startswith("VIOLATION"):
            echo(sentence)

    if websocket_port is not None and tls is not None:
        raise click.UsageError("--websocket-port is without TLS: leave out one of both")
    sys.exit(asyncio.run(_serve(behaviour, say, (host, port, websocket_port), streams)))


async def _serve(
    behaviour: Behaviour, say: Callable[[str], None], ports: tuple[str, int, int | None], streams: int | None
) -> Exit:
    """Serve until enough streams have ended, or until an interrupt. `ports`: host, port, port for WebSockets."""
    host, port, websocket_port = ports
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Handlers of asyncio do not exist on Windows.
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(interrupted.set))
    try:
        async with FakeServer(behaviour, say, host=host, port=port) as server, AsyncExitStack() as doors:
            echo(f"listening at {host}:{server.port}{' with TLS' if behaviour.tls is not None else ''}")
            if websocket_port is not None:

                def led(address: str) -> None:
                    say(f"  to this client, over WebSockets: ws://{address}")

                door = doors.enter_context(WebSocketDoor(f"{host}:{server.port}", websocket_port, assigned=led))
                echo(f"WebSockets at {door.url}")
            while not interrupted.is_set() and (streams is None or server.ended < streams):
                await asyncio.sleep(TICK_SECONDS)
    except (RuntimeError, OSError) as error:  # the first is gRPC's only error for a port in use
        echo(f"{host}:{port} cannot be listened at: {error}", err=True)
        return Exit.REFUSED
    violations = len(server.violations)
    echo(f"{server.streams} streams, {server.steps} steps, {violations} violation{'' if violations == 1 else 's'}")
    return Exit.REFUSED if violations else Exit.OK
