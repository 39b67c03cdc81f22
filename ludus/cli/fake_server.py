"""`ludus fake-server`: a server for testing clients; it trains nothing and prints the messages that it receives."""

import asyncio
import json
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Final

import click
import grpc

from ludus.cli.exits import Exit
from ludus.cli.files import read_text
from ludus.cli.options import ASSIGNMENT, EXISTING_FILE, Parsed, option, visual_encoder_option
from ludus.cli.render import echo
from ludus.protocol.options import MAX_MESSAGE_BYTES
from ludus.sdk.contract.fake_server import ENDINGS, Behaviour, FakeServer

TICK_SECONDS: Final = 0.05
WILDCARDS: Final = {"0.0.0.0", "::", "[::]"}  # noqa: S104  compared with


def _read_script(file: str) -> tuple[Any, ...]:
    """Read a file of actions, one JSON object in each line."""
    actions = []
    for number, line in enumerate(read_text(file).splitlines(), 1):
        try:
            action = json.loads(line)
            continuous = tuple(float(each) for each in action.get("continuous", ()))
            discrete = tuple(int(each) for each in action.get("discrete", ()))
        except (ValueError, TypeError, AttributeError, RecursionError):
            example = '{"continuous": [0.5], "discrete": [2]}'
            raise ValueError(f"{file}, line {number} is no action; write for instance {example}") from None
        if any(not -1 <= each <= 1 for each in continuous) or any(each < 0 for each in discrete):
            raise ValueError(f"{file}, line {number}: continuous actions lie in [-1, 1], choices count from 0")
        actions.append((continuous, discrete))
    if not actions:
        raise ValueError(f"{file} holds no action")
    return tuple(actions)


@click.command("fake-server")
@option("--host", default="127.0.0.1", help="Address to listen at.")
@option("--port", type=click.IntRange(0, 65535), default=7070, help="0: any free port.")
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
@option(
    "--ending",
    type=click.Choice(list(ENDINGS)),
    default="finished",
    help="How streams end after --steps.",
)
@click.option("--reset-every", metavar="N", type=click.IntRange(min=1), help="Reset in place of every n-th answer.")
@click.option("--save-every", metavar="N", type=click.IntRange(min=1), help="Save before every n-th answer.")
@click.option(
    "--parameter",
    "parameters",
    metavar="NAME=VALUE",
    type=ASSIGNMENT,
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
    type=Parsed("file", _read_script),
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
@option(
    "--step-timeout",
    "step_timeout_seconds",
    type=click.FloatRange(min=0.1),
    default=60.0,
    help="In seconds.",
)
@click.option("--streams", type=click.IntRange(min=1), help="Exit after this number of streams. [at Ctrl-C]")
@click.option("--quiet", is_flag=True, help="Print only violations.")
def fake_server(
    *,
    host: str,
    port: int,
    advertise: str | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    parameters: tuple[tuple[str, Any], ...],
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
    for name, value in parameters:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise click.UsageError(f"--parameter {name}: {value!r} is not a number")
    tls = None
    if tls_certificate is not None and tls_key is not None:
        authority = None if tls_client_ca is None else tls_client_ca.read_bytes()
        pair = (tls_key.read_bytes(), tls_certificate.read_bytes())
        tls = grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
    values = {name: float(value) for name, value in parameters}
    behaviour = Behaviour(advertise=advertise, parameters=values, tls=tls, **settings)

    def say(sentence: str) -> None:
        if not quiet or sentence.startswith("VIOLATION"):
            echo(sentence)

    sys.exit(asyncio.run(_serve(behaviour, say, host, port, streams)))


async def _serve(behaviour: Behaviour, say: Any, host: str, port: int, streams: int | None) -> Exit:
    """Serve until enough streams have ended, or until an interrupt."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Handlers of asyncio do not exist on Windows.
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(interrupted.set))
    try:
        async with FakeServer(behaviour, say, host=host, port=port) as server:
            echo(f"listening at {host}:{server.port}{' with TLS' if behaviour.tls is not None else ''}")
            while not interrupted.is_set() and (streams is None or server.ended < streams):
                await asyncio.sleep(TICK_SECONDS)
    except RuntimeError as error:  # the only error of gRPC for a port in use
        echo(f"{host}:{port} cannot be listened at: {error}", err=True)
        return Exit.REFUSED
    found = len(server.violations)
    echo(f"{server.streams} streams, {server.steps} steps, {found} violation{'' if found == 1 else 's'}")
    return Exit.REFUSED if found else Exit.OK
