"""Edge collectors at the gateway: where they stream to, and the errors that explain why they can't."""

import grpc
import pytest

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import COLLECTOR_SERVICE, REASON_METADATA
from ludus.protocol.tickets import verify
from server.kit.db.database import Database
from tests.server.gateway.conftest import KEY, TOKEN, GatewayThread, add_run

READER = "127.0.0.1:7200"


def join(gateway: GatewayThread, token: str = TOKEN) -> pb.JoinResponse:
    with grpc.insecure_channel(gateway.address) as channel:
        method = channel.unary_unary(
            f"{COLLECTOR_SERVICE}Join",
            request_serializer=pb.JoinRequest.SerializeToString,
            response_deserializer=pb.JoinResponse.FromString,
        )
        request = pb.JoinRequest(run="catch", session_id="edge-1", protocol_version=1)
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


def test_an_edge_collector_waits_for_an_attempt_that_does_not_listen_yet(
    gateway: GatewayThread, database: Database
) -> None:
    add_run(database, edge="")

    assert "does not listen yet" in join(gateway).wait.reason


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
