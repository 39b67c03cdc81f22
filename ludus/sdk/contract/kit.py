"""Start a client once for each scenario, and compare its behaviour with the contract."""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ludus.child_process import ChildProcess, describe_exit, last_lines
from ludus.collector.networks.convolutions import DEFAULT_ENCODER
from ludus.protocol.options import GATEWAY_VARIABLE
from ludus.sdk.contract.scenarios import RUN, Scenario
from ludus.sdk.contract.scripted import ScriptedServer

PAGE: Final = "proto/README.md"
RUN_VARIABLE: Final = "LUDUS_RUN"
RUN_PLACE: Final = "{run}"
SERVER_PLACE: Final = "{server}"


@dataclass(frozen=True)
class Verdict:
    """The result of one client in one scenario."""

    scenario: Scenario
    problems: tuple[str, ...]
    """Parts of a sentence, one for each thing that was not as the contract says; none: the client passes."""
    seconds: float
    printed: tuple[str, ...]
    """The last lines that the client printed."""

    @property
    def sentence(self) -> str:
        """The name of the scenario. If the client failed, also the rule, its section of the page, and the problems."""
        scenario = self.scenario
        if not self.problems:
            return scenario.name
        return f"{scenario.name}. {scenario.rule} ({PAGE}, section {scenario.section}). But {'; '.join(self.problems)}"


def serve(scenario: Scenario, visual_encoder: str = DEFAULT_ENCODER) -> ScriptedServer:
    """Return the server of a scenario, a context."""
    return ScriptedServer(*scenario.scripts, join=scenario.join, visual_encoder=visual_encoder)


def evaluate(scenario: Scenario, server: ScriptedServer, *, succeeded: bool, ending: str) -> Iterator[str]:
    """Yield the problems of a client that has ended. `ending` is its exit code or signal in words."""
    yield from server.violations
    if len(server.joins) != scenario.joins:
        yield f"Join was called {_times(len(server.joins))} instead of {_times(scenario.joins)}"
    if len(server.streams) != len(scenario.scripts):
        yield f"Connect was called {_times(len(server.streams))} instead of {_times(len(scenario.scripts))}"
    if server.joins and (wrong := scenario.check(server)) is not None:
        yield wrong
    if succeeded is not scenario.succeeds:
        yield f"the client ended with {ending} instead of {'0' if scenario.succeeds else 'another one'}"


def try_client(
    scenario: Scenario, command: Sequence[str], timeout_seconds: float, *, visual_encoder: str = DEFAULT_ENCODER
) -> Verdict:
    """Run a client in a scenario to its end, or end it and all that it started after the time-out.

    `--run` and `--server` are appended to the command, unless it has places for them. Raises OSError if it cannot be
    started.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with serve(scenario, visual_encoder) as server, output.open("wb") as sink:
            client = ChildProcess(
                _addressed(command, server.address),
                environment=_environment(server.address),
                own_group=True,
                stdout=sink,
                stderr=sink,
            )
            try:
                code = client.wait(timeout_seconds)
                # Before the client is ended, which breaks its stream.
                problems = [*server.violations, *_hanging(server, timeout_seconds)] if code is None else []
            finally:
                client.end()
        if code is not None:  # the server has read all that came
            problems = [*evaluate(scenario, server, succeeded=code == 0, ending=describe_exit(code))]
        return Verdict(scenario, tuple(problems), time.monotonic() - began, tuple(last_lines(output)))


def _hanging(server: ScriptedServer, seconds: float) -> Iterator[str]:
    """Say that a client did not end, and what it was expected to do next."""
    awaited = server.streams[-1].awaits if server.streams else "Connect" if server.joins else "Join"
    yield f"the client still ran after {seconds:g} s, and was ended; the server waited for {awaited}"


def _addressed(command: Sequence[str], address: str) -> list[str]:
    """Return the command with the run and the server's address."""
    filled = [part.replace(RUN_PLACE, RUN).replace(SERVER_PLACE, address) for part in command]
    return filled if filled != [*command] else [*command, "--run", RUN, "--server", address]


def _environment(address: str) -> dict[str, str]:
    """Return the environment of a client: without proxies, tokens and other settings of Ludus."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith("LUDUS_")
    }
    return {**kept, RUN_VARIABLE: RUN, GATEWAY_VARIABLE: address}


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
