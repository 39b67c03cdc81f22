"""Edge collectors at the gateway: where they stream to, and the errors that explain why they can't."""

import grpc
import pytest
from sqlalchemy import event

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import COLLECTOR_SERVICE, REASON_METADATA
from ludus.protocol.tickets import verify
from ludus.schemas.tokens import Scope
from server.access.service import TokenService
from server.kit.db.database import Database
from server.kit.principal import everything
from server.runs.models import Attempt, Run
from tests.server.gateway.conftest import KEY, TOKEN, GatewayThread, add_run

READER = "127.0.0.1:7200"


def join(gateway: GatewayThread, token: str = TOKEN, *, relay: bool = False) -> pb.JoinResponse:
    with grpc.insecure_channel(gateway.address) as channel:
        method = channel.unary_unary(
            f"{COLLECTOR_SERVICE}Join",
            request_serializer=pb.JoinRequest.SerializeToString,
            response_deserializer=pb.JoinResponse.FromString,
        )
        request = pb.JoinRequest(run="catch", session_id="edge-1", protocol_version=1, relay=relay)
        response: pb.JoinResponse = method(request, metadata=[("authorization", f"Bearer {token}")], timeout=60)
        return response


def test_an_edge_collector_is_assigned_to_the_edge_reader_and_a_simulator_to_a_collector(
    gateway: GatewayThread, database: Database
) -> None:
    run_id = add_run(database, "127.0.0.1:7100", edge=READER)

    collector, simulator = join(gateway).assignment, gateway.join().assignment

    assert (collector.address, simulator.address) == (READER, "127.0.0.1:7100")
    claims = verify(KEY.encode(), collector.ticket, 0.0)
    assert (claims.run_id, claims.attempt, claims.session_id, claims.endpoint) == (run_id, 1, "edge-1", READER)


def test_a_simulator_of_a_run_with_edge_collectors_only_is_told_where_to_connect(
    gateway: GatewayThread, database: Database
) -> None:
    add_run(database, edge=READER)

    assert "ludus collect" in gateway.join().wait.reason


def test_the_first_edge_collector_of_an_attempt_asks_for_places_once_and_waits(
    gateway: GatewayThread, database: Database
) -> None:
    run_id = add_run(database, "127.0.0.1:7100", edge="")
    written: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *given: written.append(given[2]))

    first, again = join(gateway), join(gateway)

    assert "does not listen for edge collectors yet" in first.wait.reason
    assert again == first
    assert sum(statement.startswith("UPDATE attempts") for statement in written) == 1
    with database.read() as session:
        assert session.get_one(Attempt, (run_id, 1)).places_asked
        assert session.get_one(Run, run_id).requests == 1  # the supervisor reads it after its next heartbeat


def test_the_next_attempt_is_asked_anew(gateway: GatewayThread, database: Database) -> None:
    run_id = add_run(database, "127.0.0.1:7100", edge="")
    join(gateway)
    with database.write() as session:
        before = session.get_one(Attempt, (run_id, 1))
        before.ended_at = 1.0
        session.add(Attempt(run_id=run_id, number=2, worker_id="w", heartbeat_at=1.0, started_at=1.0))
        session.get_one(Run, run_id).attempt = 2

    join(gateway)

    with database.read() as session:
        assert session.get_one(Attempt, (run_id, 2)).places_asked


def test_a_worker_that_can_take_no_edge_collectors_is_named_with_the_remedy(
    gateway: GatewayThread, database: Database
) -> None:
    run_id = add_run(database, "127.0.0.1:7100", edge="")
    with database.write() as session:
        session.get_one(Attempt, (run_id, 1)).places_problem = "no free port to listen on"

    with pytest.raises(grpc.RpcError) as caught:
        join(gateway)

    assert dict(caught.value.trailing_metadata() or ())[REASON_METADATA] == "places_unavailable"  # type: ignore[attr-defined]
    said = str(caught.value.details())  # type: ignore[attr-defined]
    assert "no free port to listen on" in said
    assert "LUDUS_WORKER__PORT_RANGE" in said


@pytest.mark.parametrize(
    ("scope", "bound", "reason"),
    [(Scope.READ, False, "scope_missing"), (Scope.SIMULATE, True, "run_forbidden")],
    ids=["reads", "another run's"],
)
def test_a_token_for_something_else_lets_no_edge_collector_in(
    gateway: GatewayThread, database: Database, scope: Scope, bound: bool, reason: str
) -> None:
    own = add_run(database, "127.0.0.1:7100", edge=READER)
    other = add_run(database, "127.0.0.1:7100", name="other", edge=READER)
    with database.write() as session:
        tokens = TokenService(session, everything("test"))
        token = tokens.create("t", [scope], project="default", run=other if bound else None).text
        simulates = tokens.create("own", [Scope.SIMULATE], project="default", run=own).text

    assert join(gateway, simulates).assignment.run_id == own
    with pytest.raises(grpc.RpcError) as caught:
        join(gateway, token)

    assert dict(caught.value.trailing_metadata() or ())[REASON_METADATA] == reason  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("edge", "token", "reason"),
    [(None, TOKEN, "no_places"), (READER, "wrong", "unauthenticated")],
    ids=["no places", "wrong token"],
)
def test_a_refused_edge_collector_is_told_why(
    gateway: GatewayThread, database: Database, edge: str | None, token: str, reason: str
) -> None:
    add_run(database, "127.0.0.1:7100", edge=edge)

    with pytest.raises(grpc.RpcError) as caught:
        join(gateway, token)

    assert dict(caught.value.trailing_metadata() or ())[REASON_METADATA] == reason  # type: ignore[attr-defined]
