"""What any simulator client must live through. Each scenario is a server; the client plays in run "contract" at its
address.

A client passes if it leaves no violation behind, opens the expected number of streams, and ends as expected.
"""

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import grpc

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codes import CloseCode
from tests.fakes import FakeServer, Joiner, Peer, Script, assign, finish_after, refuse

Responses = Iterator[pb.ConnectResponse]


@dataclass(frozen=True)
class Scenario:
    """A server's behaviour and what is expected of the client."""

    name: str
    scripts: tuple[Script, ...]
    join: Joiner = assign
    succeeds: bool = True
    """Whether the client shall end as after a finished run (exit code 0)."""
    least_joins: int = 1
    most_joins: int = 1
    check: Callable[[FakeServer], None] = field(default=lambda server: None)


def partial_answers(peer: Peer) -> Responses:
    """Answer each step's first agent alone, then the others."""
    peer.hello()
    yield peer.welcome()
    for _ in range(30):
        step_id, batches = peer.step()
        yield peer.answer(step_id, batches, slice(0, 1))
        if any(batch.decisions is not None and len(batch.decisions.agent_ids) > 1 for batch in batches):
            yield peer.answer(step_id, batches, slice(1, None))
    yield peer.close()


def reversed_answers(peer: Peer) -> Responses:
    """Name the agents in another order than they asked in."""
    peer.hello()
    yield peer.welcome()
    for _ in range(30):
        yield peer.answer(*peer.step(), slice(None, None, -1))
    yield peer.close()


def reset_between(peer: Peer) -> Responses:
    """Answer some steps, leave one unanswered, reset, and go on."""
    peer.hello()
    yield peer.welcome({"gravity": 9.81})
    yield from peer.play(5)
    peer.step()
    yield peer.reset({"gravity": 1.62})
    yield from peer.play(10)
    yield peer.close()


def new_parameters(peer: Peer) -> Responses:
    """Tell other environment parameters with an answer, and go on: nothing is reset."""
    peer.hello()
    yield peer.welcome({"gravity": 9.81})
    yield from peer.play(5)
    answer = peer.answer(*peer.step())
    answer.actions.environment_parameters.update({"gravity": 1.62, "wind": 0.5})
    answer.actions.samplers["wind"].uniform.max_value = 1.0
    yield answer
    yield from peer.play(10)
    yield peer.close()


def wait_before_answering(peer: Peer) -> Responses:
    """Say Wait before each answer."""
    peer.hello()
    yield peer.welcome()
    for _ in range(3):
        step = peer.step()
        yield pb.ConnectResponse(wait=pb.Wait(reason="the run is paused"))
        yield peer.answer(*step)
    yield peer.close()


def unknown_messages(peer: Peer) -> Responses:
    """Send messages and fields of a later minor version between those that are known."""
    peer.hello()
    yield peer.welcome()
    later = pb.ConnectResponse.FromString(bytes([0xA2, 0x06, 0x02, 0x08, 0x01]))  # field 100, a message
    for _ in range(3):
        step = peer.step()
        yield later
        yield peer.answer(*step)
    yield peer.close()


def close_for_rejoin(peer: Peer) -> Responses:
    peer.hello()
    yield peer.welcome()
    yield from peer.play(5)
    peer.step()
    yield peer.close(CloseCode.COLLECTOR_CLOSING, "the collector is restarted")


def broken(peer: Peer) -> Responses:
    peer.hello()
    yield peer.welcome()
    yield from peer.play(3)
    peer.context.abort(grpc.StatusCode.UNAVAILABLE, "the collector died")


def ends_silently(peer: Peer) -> Responses:
    peer.hello()
    yield peer.welcome()
    yield from peer.play(3)


def refuse_data(peer: Peer) -> Responses:
    peer.hello()
    yield peer.welcome()
    peer.step()
    yield peer.close(CloseCode.NOT_FINITE, "observation 0 holds NaN")


def refuse_spec(peer: Peer) -> Responses:
    peer.hello()
    yield peer.close(CloseCode.SPEC_CONFLICT, "the run's Catcher has 4 observations")


def cancelled(peer: Peer) -> Responses:
    peer.hello()
    yield peer.welcome()
    yield from peer.play(3)
    yield peer.close(CloseCode.RUN_CANCELLED, "somebody cancelled the run")


def wait_twice(server: FakeServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
    if len(server.joins) <= 2:
        return pb.JoinResponse(wait=pb.Wait(reason="the run is queued", retry_after_seconds=0.1))
    return assign(server, request, context)


def flaky(server: FakeServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
    if len(server.joins) <= 2:
        refuse(context, grpc.StatusCode.UNAVAILABLE, "database_unavailable", "the database does not answer")
    return assign(server, request, context)


def unreachable(server: FakeServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
    """Assign an address where nothing listens, as seen from a client behind a firewall."""
    response = assign(server, request, context)
    if not request.relay:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            response.assignment.address = f"127.0.0.1:{probe.getsockname()[1]}"
    return response


def no_such_run(server: FakeServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
    refuse(context, grpc.StatusCode.NOT_FOUND, "run_not_found", f"there is no run {request.run!r}")


def ended(server: FakeServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
    refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "run_ended", "the run has ended", "SUCCEEDED")


def unauthenticated(server: FakeServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
    refuse(context, grpc.StatusCode.UNAUTHENTICATED, "unauthenticated", "a token is needed")


def asked_for_relay(server: FakeServer) -> None:
    assert [join.relay for join in server.joins] == [False, True]


def kept_its_session_id(server: FakeServer) -> None:
    assert len(server.session_ids) == 1


def named_itself(server: FakeServer) -> None:
    (join,) = server.joins
    assert join.run == "contract"
    assert join.protocol_version == 1
    assert join.client


def ended_episodes(server: FakeServer) -> None:
    assert server.streams[0].episodes > 0


SCENARIOS = (
    Scenario("plays until the run is finished", (finish_after(200),), check=named_itself),
    Scenario("ends episodes and begins new ones", (finish_after(200),), check=ended_episodes),
    Scenario("accepts answers for a part of its agents", (partial_answers,)),
    Scenario("reads answers in the order that the server names", (reversed_answers,)),
    Scenario("begins new episodes after a reset", (reset_between,)),
    Scenario("plays on with other parameters", (new_parameters,)),
    Scenario("goes on after a wait", (wait_before_answering,)),
    Scenario("ignores messages that it does not know", (unknown_messages,)),
    Scenario("waits for a run that is not ready", (finish_after(3),), wait_twice, least_joins=3, most_joins=3),
    Scenario("tries again while the gateway is in trouble", (finish_after(3),), flaky, least_joins=3, most_joins=3),
    Scenario(
        "joins again when told to",
        (close_for_rejoin, finish_after(3)),
        least_joins=2,
        most_joins=2,
        check=kept_its_session_id,
    ),
    Scenario(
        "joins again when the stream breaks",
        (broken, ends_silently, finish_after(3)),
        least_joins=3,
        most_joins=3,
        check=kept_its_session_id,
    ),
    Scenario(
        "asks for relay when the collector is out of reach",
        (finish_after(3),),
        unreachable,
        least_joins=2,
        most_joins=2,
        check=asked_for_relay,
    ),
    Scenario("gives up when its data is refused", (refuse_data,), succeeds=False),
    Scenario("gives up when its spec is refused", (refuse_spec,), succeeds=False),
    Scenario("does not call a cancelled run finished", (cancelled,), succeeds=False),
    Scenario("gives up when there is no such run", (), no_such_run, succeeds=False),
    Scenario("gives up when it is not authorized", (), unauthenticated, succeeds=False),
    Scenario("ends well when the run has ended already", (), ended),
)
