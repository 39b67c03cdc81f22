"""Scenarios that every simulator client must pass: start it once for each, and compare its behaviour with the contract.

Each scenario is a server; the client plays in run "contract". It passes if it leaves no violation behind, joins and
opens streams as often as expected, and ends as expected.
"""

import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from ludus.child_process import ChildProcess, describe_exit, last_lines
from ludus.collector.visual_encoders import DEFAULT_ENCODER
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import PROTOCOL_VERSION
from ludus.protocol.codes import CloseCode
from ludus.protocol.options import GATEWAY_VARIABLE
from ludus.sdk.contract.scripted import JoinHandler, Peer, Script, ScriptedServer, assign, finish_after, refuse
from ludus.sdk.contract.served_stream import LATER_MESSAGE
from ludus.sdk.contract.websocket import (
    Framing,
    WebSocketDoor,
    fragmented,
    going_away,
    pinged,
    with_later_keys,
)

RUN: Final = "contract"
FRAME_LENGTHS: Final = (125, 126, 65535, 65536, 1 << 20)
"""Where the length in a frame's header gets longer, and one that takes several reads."""
Responses = Iterator[pb.ConnectResponse]


@dataclass(frozen=True)
class Scenario:
    """The behaviour of a server, and what a client must do there."""

    name: str
    section: str
    """The heading of proto/README.md under which the rule stands."""
    rule: str
    """The duty of the client: one sentence without a full stop."""
    scripts: tuple[Script, ...]
    """One for each stream that the client must open, in order."""
    join: JoinHandler = assign
    joins: int = 1
    """Calls of Join that the client must make."""
    succeeds: bool = True
    """Whether the client must end as after a finished run (exit code 0)."""
    check: Callable[[ScriptedServer], str | None] = lambda _: None
    """Returns what else went wrong, as a part of a sentence."""
    framing: Framing | None = None
    """How WebSockets carry the server's messages: each as it is."""


def session(body: Script) -> Script:
    """Return the script that welcomes a client, plays `body` and finishes the run."""

    def script(peer: Peer) -> Responses:
        yield from greeted(body)(peer)
        yield peer.close()

    return script


def greeted(body: Script) -> Script:
    """Return the script that welcomes a client and ends as `body` does."""

    def script(peer: Peer) -> Responses:
        peer.hello()
        yield peer.welcome({"gravity": 9.81})
        yield from body(peer)

    return script


@session
def partial_answers(peer: Peer) -> Responses:
    """Answer each step's first agent alone, then the others."""
    for _ in range(30):
        step_id, batches = peer.step()
        yield peer.answer(step_id, batches, slice(0, 1))
        if any(batch.decisions is not None and len(batch.decisions.agent_ids) > 1 for batch in batches):
            yield peer.answer(step_id, batches, slice(1, None))


@session
def reversed_answers(peer: Peer) -> Responses:
    """Name the agents in another order than they asked in."""
    for _ in range(30):
        yield peer.answer(*peer.step(), slice(None, None, -1))


@session
def reset_between(peer: Peer) -> Responses:
    """Answer some steps, leave one unanswered, reset, and go on."""
    yield from peer.play(5)
    peer.step()
    yield peer.reset({"gravity": 1.62})
    yield from peer.play(10)


@session
def new_parameters(peer: Peer) -> Responses:
    """Tell other environment parameters with an answer, and go on: nothing is reset."""
    yield from peer.play(5)
    answer = peer.answer(*peer.step())
    answer.actions.environment_parameters.update({"gravity": 1.62, "wind": 0.5})
    answer.actions.samplers["wind"].uniform.max_value = 1.0
    yield answer
    yield from peer.play(10)


@session
def wait_before_answering(peer: Peer) -> Responses:
    """Say Wait before each answer."""
    for _ in range(3):
        step = peer.step()
        yield pb.ConnectResponse(wait=pb.Wait(reason="the run is paused"))
        yield peer.answer(*step)


@session
def unknown_messages(peer: Peer) -> Responses:
    """Send messages and fields of a later minor version between those that are known."""
    for _ in range(3):
        step = peer.step()
        yield pb.ConnectResponse.FromString(LATER_MESSAGE)
        yield peer.answer(*step)


def later_message(length: int) -> pb.ConnectResponse:
    """Return a message of a later version that has so many bytes, 125 or more."""
    about = length - 5
    header = pb.Saved(position=bytes(about)).ByteSize() - about + 1
    field = pb.Saved(position=b"\xff" * (length - header)).SerializeToString()
    return pb.ConnectResponse.FromString(LATER_MESSAGE[:2] + field[1:])


@session
def every_length(peer: Peer) -> Responses:
    """Send messages of the lengths at which the header of a WebSocket's frame changes, between those that are known."""
    for length in FRAME_LENGTHS:
        step = peer.step()
        yield later_message(length)
        yield peer.answer(*step)


@greeted
def close_for_rejoin(peer: Peer) -> Responses:
    """Close, with the advice to join again, while a step is unanswered."""
    yield from peer.play(5)
    peer.step()
    yield peer.close(CloseCode.COLLECTOR_CLOSING, "the collector is restarted")


@greeted
def broken(peer: Peer) -> Responses:
    """Break the stream off."""
    yield from peer.play(3)
    peer.context.abort(grpc.StatusCode.UNAVAILABLE, "the collector died")


@greeted
def refuse_data(peer: Peer) -> Responses:
    """Refuse the data of the first step."""
    peer.step()
    yield peer.close(CloseCode.NOT_FINITE, "observation 0 holds NaN")


def refuse_spec(peer: Peer) -> Responses:
    """Refuse the spec in Hello."""
    peer.hello()
    yield peer.close(CloseCode.SPEC_CONFLICT, "the run's Catcher has 4 observations")


@greeted
def cancelled(peer: Peer) -> Responses:
    """Close because the run was cancelled."""
    yield from peer.play(3)
    yield peer.close(CloseCode.RUN_CANCELLED, "somebody cancelled the run")


def refusing(status: grpc.StatusCode, reason: str, details: str, state: str = "") -> JoinHandler:
    """Return the answer to Join that is this refusal."""
    return lambda _, __, context: refuse(context, status, reason, details, state)


def wait_twice(server: ScriptedServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
    """Answer the first two calls with `wait`, then assign."""
    if len(server.joins) <= 2:
        return pb.JoinResponse(wait=pb.Wait(reason="the run is queued", retry_after_seconds=0.1))
    return assign(server, request, context)


def flaky(server: ScriptedServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
    """Fail the first two calls, as while the database is away."""
    if len(server.joins) <= 2:
        refuse(context, grpc.StatusCode.UNAVAILABLE, "database_unavailable", "the database does not answer")
    return assign(server, request, context)


def unreachable(server: ScriptedServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
    """Assign an address where nothing listens, as seen from a client behind a firewall."""
    response = assign(server, request, context)
    if not request.relay:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            response.assignment.address = f"127.0.0.1:{probe.getsockname()[1]}"
    return response


def asked_for_relay(server: ScriptedServer) -> str | None:
    """Check that the second call of Join asks for relay, and the first one does not."""
    relays = [join.relay for join in server.joins]
    return None if relays == [False, True] else f"`relay` was {', '.join(str(value).lower() for value in relays)}"


def kept_its_session_id(server: ScriptedServer) -> str | None:
    """Check that all calls of Join have the same session id."""
    count = len(server.session_ids)
    return None if count == 1 else f"{count} session ids came, and it must be the same in all calls of Join"


def named_itself(server: ScriptedServer) -> str | None:
    """Check the fields of Join."""
    for join in server.joins:
        if join.run != RUN:
            return f"`run` was {join.run!r}"
        if join.protocol_version != PROTOCOL_VERSION:
            return f"`protocol_version` was {join.protocol_version}"
        if not join.client:
            return "`client` was empty"
    return None


def ended_episodes(server: ScriptedServer) -> str | None:
    """Check that an episode has ended."""
    return None if any(peer.episodes for peer in server.streams) else "no episode has ended"


SCENARIOS: Final = (
    Scenario(
        "plays until the run is finished",
        "1. In short",
        f"The client calls Join with the run {RUN!r}, protocol version 1 and its own name, plays, and ends with exit "
        "code 0 after Close(run_finished)",
        (finish_after(200),),
        check=named_itself,
    ),
    Scenario(
        "ends episodes and begins new ones",
        "6. Steps and actions",
        "An agent whose episode has ended goes into the `terminals` of a step, within 200 steps in this test",
        (finish_after(200),),
        check=ended_episodes,
    ),
    Scenario(
        "accepts answers for a part of its agents",
        "6. Steps and actions",
        "Agents that an answer does not name go on waiting for theirs",
        (partial_answers,),
    ),
    Scenario(
        "reads answers in the order that the server names",
        "6. Steps and actions",
        "The rows of an answer belong to the agents in its `agent_ids`, whatever their order in the step",
        (reversed_answers,),
    ),
    Scenario(
        "begins new episodes after a reset",
        "7. Reset",
        "After Reset the client abandons its episodes without terminals, begins new ones, and names the reset's "
        "`reset_id` in each step",
        (reset_between,),
    ),
    Scenario(
        "plays on with other parameters",
        "7. Reset",
        "Environment parameters in Actions are for later episodes; those that run go on",
        (new_parameters,),
    ),
    Scenario(
        "goes on after a wait",
        "4. The order of messages",
        "Wait changes nothing: the agents go on waiting for their answer",
        (wait_before_answering,),
    ),
    Scenario(
        "ignores messages that it does not know",
        "11. Limits and versions",
        "The client ignores a ConnectResponse in which no known field is set",
        (unknown_messages,),
    ),
    Scenario(
        "waits for a run that is not ready",
        "3. Joining",
        "After `wait` the client calls Join again, as long as necessary",
        (finish_after(3),),
        wait_twice,
        joins=3,
        check=kept_its_session_id,
    ),
    Scenario(
        "tries again while the gateway is in trouble",
        "3. Joining",
        "After a call of Join that failed with UNAVAILABLE the client waits and tries again",
        (finish_after(3),),
        flaky,
        joins=3,
        check=kept_its_session_id,
    ),
    Scenario(
        "joins again when told to",
        "10. Reconnecting",
        "After Close with `rejoin` the client joins again with the same session id, and begins without state",
        (close_for_rejoin, finish_after(3)),
        joins=2,
        check=kept_its_session_id,
    ),
    Scenario(
        "joins again when the stream breaks",
        "10. Reconnecting",
        "After a stream that ended without Close, whatever its status, the client joins again with the same session id",
        (broken, greeted(lambda peer: peer.play(3)), finish_after(3)),
        joins=3,
        check=kept_its_session_id,
    ),
    Scenario(
        "asks for relay when the collector is out of reach",
        "3. Joining",
        "If the assignment's address cannot be reached within 2 s, the client calls Join again with `relay` = true and "
        "opens Connect at the gateway",
        (finish_after(3),),
        unreachable,
        joins=2,
        check=asked_for_relay,
    ),
    Scenario(
        "gives up when its data is refused",
        "8. Close",
        "After Close without `rejoin` the client does not join again, and ends with another exit code than 0",
        (refuse_data,),
        succeeds=False,
    ),
    Scenario(
        "gives up when its spec is refused",
        "8. Close",
        "Close may come in place of Welcome: without `rejoin` the client does not join again, and ends with another "
        "exit code than 0",
        (refuse_spec,),
        succeeds=False,
    ),
    Scenario(
        "does not call a cancelled run finished",
        "8. Close",
        "After Close(run_cancelled) the client ends with another exit code than 0",
        (cancelled,),
        succeeds=False,
    ),
    Scenario(
        "gives up when there is no such run",
        "3. Joining",
        "After NOT_FOUND the client does not try again, and ends with another exit code than 0",
        (),
        refusing(grpc.StatusCode.NOT_FOUND, "run_not_found", "there is no such run"),
        succeeds=False,
    ),
    Scenario(
        "gives up when it is not authorized",
        "3. Joining",
        "After UNAUTHENTICATED the client does not try again, and ends with another exit code than 0",
        (),
        refusing(grpc.StatusCode.UNAUTHENTICATED, "unauthenticated", "a token is needed"),
        succeeds=False,
    ),
    Scenario(
        "ends well when the run has ended already",
        "3. Joining",
        "`run_ended` with the state SUCCEEDED is a success: the client ends with exit code 0",
        (),
        refusing(grpc.StatusCode.FAILED_PRECONDITION, "run_ended", "the run has ended", "SUCCEEDED"),
    ),
)


WEBSOCKET_SCENARIOS: Final = (
    Scenario(
        "answers pings",
        "15. WebSockets",
        "A ping is answered by a pong with the same bytes, also before the answer to Join",
        (finish_after(3),),
        framing=pinged,
    ),
    Scenario(
        "puts fragments together",
        "15. WebSockets",
        "A message may come in fragments, with a ping between them that is answered",
        (finish_after(3),),
        framing=fragmented,
    ),
    Scenario(
        "reads frames of every length",
        "15. WebSockets",
        "A frame of 126 bytes and more has its length in two bytes, one of 65536 and more in eight",
        (every_length,),
    ),
    Scenario(
        "ignores keys of texts that it does not know",
        "15. WebSockets",
        "The client ignores keys of texts that it does not know, whatever their value, and a text that has no others",
        (finish_after(3),),
        flaky,
        joins=3,
        check=kept_its_session_id,
        framing=with_later_keys,
    ),
    Scenario(
        "joins again when the server goes away",
        "15. WebSockets",
        "After the close code 1001 in the middle of a stream the client joins again with the same session id",
        (broken, finish_after(3)),
        joins=2,
        check=kept_its_session_id,
        framing=going_away,
    ),
)
"""More scenarios, for clients with WebSockets."""


PAGE: Final = "proto/README.md"
RUN_VARIABLE: Final = "LUDUS_RUN"
RUN_PLACE: Final = "{run}"
SERVER_PLACE: Final = "{server}"
WEBSOCKET_PLACE: Final = "{websocket}"


def scenarios_of(command: Sequence[str]) -> tuple[Scenario, ...]:
    """Return the scenarios that a client must pass: those of WebSockets, too, if it has a place for their address."""
    return (*SCENARIOS, *(WEBSOCKET_SCENARIOS if any(WEBSOCKET_PLACE in part for part in command) else ()))


@dataclass(frozen=True)
class Verdict:
    """The result of one client in one scenario."""

    scenario: Scenario
    problems: tuple[str, ...]
    """Parts of a sentence, one for each thing that was not as the contract says; none: the client passes."""
    seconds: float
    printed: tuple[str, ...]

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

    `--run` and `--server` are appended to the command, unless it has places for them; {websocket} is one for the
    address of the same server for WebSockets. Raises OSError if it cannot be started.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        with serve(scenario, visual_encoder) as server, ExitStack() as doors, output.open("wb") as sink:
            filled = [part.replace(RUN_PLACE, RUN).replace(SERVER_PLACE, server.address) for part in command]
            if any(WEBSOCKET_PLACE in part for part in command):
                framed = WebSocketDoor(server.address, framing=scenario.framing, violation=server.violations.append)
                door = doors.enter_context(framed)
                filled = [part.replace(WEBSOCKET_PLACE, door.url) for part in filled]
            client = ChildProcess(
                filled if filled != [*command] else [*command, "--run", RUN, "--server", server.address],
                environment={**_environment(), RUN_VARIABLE: RUN, GATEWAY_VARIABLE: server.address},
                own_group=True,
                stdout=sink,
                stderr=sink,
            )
            try:
                code = client.wait(timeout_seconds)
                if code is None:  # before the client is ended, which breaks its stream
                    awaited = server.streams[-1].awaits if server.streams else "Connect" if server.joins else "Join"
                    hangs = f"the client still ran after {timeout_seconds:g} s, and was ended"
                    problems = [*server.violations, f"{hangs}; the server waited for {awaited}"]
            finally:
                client.end()
        if code is not None:  # the server has read all that came
            problems = [*evaluate(scenario, server, succeeded=code == 0, ending=describe_exit(code))]
        return Verdict(scenario, tuple(problems), time.monotonic() - began, tuple(last_lines(output)))


def _environment() -> dict[str, str]:
    """Return the environment of a client: without proxies, tokens and other settings of Ludus."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith("LUDUS_")
    }


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
