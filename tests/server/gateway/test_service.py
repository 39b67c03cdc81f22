"""Join: who gets a place where, and who gets an answer that says why not."""

import time
from collections import Counter
from typing import Any

import grpc
import pytest
import structlog
from pydantic import SecretStr

from ludus.wire.options import REASON_METADATA, STATE_METADATA
from server.db.database import Database
from server.errors import ErrorKind
from server.gateway.errors import STATUS
from server.gateway.main import CannotServe, check, is_loopback
from server.gateway.tickets import verify
from server.settings import GatewaySettings
from tests.server.gateway.conftest import KEY, GatewayThread, add_run

HEALTH = "/grpc.health.v1.Health/"


def test_a_simulator_gets_an_address_and_a_ticket_for_its_attempt(gateway: GatewayThread) -> None:
    run_id = add_run(gateway.database, "worker-1:41000")

    assignment = gateway.join(run="catch", incarnation="one", label="catch x4").assignment

    assert assignment.address == "worker-1:41000"
    assert not assignment.relay
    assert assignment.run_id == run_id
    assert assignment.simulator_number == 0
    claims = verify(KEY.encode(), assignment.ticket, time.time())
    assert (claims.run_id, claims.epoch, claims.incarnation, claims.number) == (run_id, 1, "one", 0)
    assert claims.expires_at == pytest.approx(time.time() + assignment.ticket_valid_seconds, abs=5)


def test_joining_again_gives_the_same_number_and_collector(gateway: GatewayThread) -> None:
    add_run(gateway.database, "worker-1:41000", "worker-1:41001", "worker-1:41002")
    first = [gateway.join(incarnation=name).assignment for name in ("one", "two", "three")]

    again = [gateway.join(incarnation=name).assignment for name in ("one", "two", "three")]

    assert [each.simulator_number for each in again] == [0, 1, 2]
    assert [each.address for each in again] == [each.address for each in first]


def test_simulators_are_spread_evenly_over_collectors(gateway: GatewayThread) -> None:
    add_run(gateway.database, "worker-1:41000", "worker-1:41001")

    addresses = Counter(gateway.join(incarnation=f"s{number}").assignment.address for number in range(10))

    assert addresses == {"worker-1:41000": 5, "worker-1:41001": 5}


def test_relay_is_granted_without_an_address(gateway: GatewayThread) -> None:
    add_run(gateway.database, "worker-1:41000")

    assignment = gateway.join(relay=True).assignment

    assert assignment.relay
    assert assignment.address == ""
    assert verify(KEY.encode(), assignment.ticket, time.time()).endpoint == "worker-1:41000"


@pytest.mark.parametrize(("state", "addresses"), [("QUEUED", ()), ("STARTING", ()), ("PAUSED", ("worker-1:41000",))])
def test_a_run_that_is_not_ready_lets_simulators_wait(
    gateway: GatewayThread, state: str, addresses: tuple[str, ...]
) -> None:
    add_run(gateway.database, *addresses, state=state)

    wait = gateway.join().wait

    assert state in wait.reason
    assert wait.retry_after_seconds > 0


def refusal(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str, str]:
    call: Any = error.value
    return call.code(), dict(call.trailing_metadata())[REASON_METADATA], call.details()


@pytest.mark.parametrize("token", [None, "", "open", "open sesame "])
def test_a_wrong_token_is_refused(gateway: GatewayThread, token: str | None) -> None:
    add_run(gateway.database, "worker-1:41000")

    with pytest.raises(grpc.RpcError) as error:
        gateway.join(token=token)

    code, reason, details = refusal(error)
    assert (code, reason) == (grpc.StatusCode.UNAUTHENTICATED, "unauthenticated")
    assert "authorization: Bearer" in details


def test_an_unknown_run_is_not_found(gateway: GatewayThread) -> None:
    with pytest.raises(grpc.RpcError, match="no run with the id or name 'pong'") as error:
        gateway.join(run="pong")

    assert refusal(error)[:2] == (grpc.StatusCode.NOT_FOUND, "run_not_found")


def test_a_run_that_has_ended_says_how(gateway: GatewayThread) -> None:
    add_run(gateway.database, state="CANCELLED")

    with pytest.raises(grpc.RpcError, match="has ended") as error:
        gateway.join()

    call: Any = error.value
    assert refusal(error)[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "run_ended")
    assert dict(call.trailing_metadata())[STATE_METADATA] == "CANCELLED"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"run": ""}, "bad_join"),
        ({"run": "x" * 201}, "bad_join"),
        ({"incarnation": ""}, "bad_join"),
        ({"incarnation": "a/b"}, "bad_join"),
        ({"incarnation": "a" * 65}, "bad_join"),
        ({"label": "x" * 201}, "bad_join"),
        ({"label": "two\nlines"}, "bad_join"),
        ({"client": "x" * 101}, "bad_join"),
        ({"label": "x" * 5000}, "bad_join"),
        ({"protocol_version": 0}, "protocol_version"),
        ({"protocol_version": 2}, "protocol_version"),
    ],
)
def test_a_malformed_join_is_refused(gateway: GatewayThread, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(grpc.RpcError) as error:
        gateway.join(**fields)

    assert refusal(error)[1] == reason


def test_garbage_gets_an_answer(gateway: GatewayThread) -> None:
    call = gateway.channel.unary_unary("/ludus.v1.SimulationService/Join")

    with pytest.raises(grpc.RpcError) as error:
        call(b"\xff\xff\xff", metadata=[("authorization", "Bearer open sesame")], timeout=10)

    assert refusal(error)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "bad_join")


def test_a_defect_is_an_internal_error_that_reveals_nothing(gateway: GatewayThread, database: Database) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE attempts")
        connection.exec_driver_sql("DROP TABLE runs")

    with structlog.testing.capture_logs() as logs, pytest.raises(grpc.RpcError) as error:
        gateway.join()

    code, reason, details = refusal(error)
    assert (code, reason) == (grpc.StatusCode.INTERNAL, "internal_error")
    assert "runs" not in details
    assert [log["event"] for log in logs] == ["join_failed"]


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [(b"", b"\x08\x01"), (b"\x0a\x1aludus.v1.SimulationService", b"\x08\x01")],
)
def test_a_healthy_gateway_says_so(gateway: GatewayThread, request_bytes: bytes, answer: bytes) -> None:
    assert gateway.channel.unary_unary(f"{HEALTH}Check")(request_bytes, timeout=10) == answer


def test_the_health_of_an_unknown_service_is_not_found(gateway: GatewayThread) -> None:
    with pytest.raises(grpc.RpcError) as error:
        gateway.channel.unary_unary(f"{HEALTH}Check")(b"\x0a\x03foo", timeout=10)

    assert error.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_stopping_gateway_tells_who_watches_its_health(gateway: GatewayThread) -> None:
    watch = gateway.channel.unary_stream(f"{HEALTH}Watch")(b"", timeout=10)
    assert next(watch) == b"\x08\x01"

    gateway.stop()

    assert next(watch) == b"\x08\x02"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "games.example"])
def test_listening_to_the_world_needs_a_token(host: str) -> None:
    with pytest.raises(CannotServe, match="LUDUS_GATEWAY__TOKEN"):
        check(GatewaySettings(host=host))

    check(GatewaySettings(host=host, token=SecretStr("secret")))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    check(GatewaySettings(host=host))


def test_a_short_ticket_key_is_refused() -> None:
    with pytest.raises(CannotServe, match="at least 32 bytes"):
        check(GatewaySettings(ticket_key=SecretStr("short")))


def test_every_kind_of_error_has_a_status() -> None:
    assert STATUS.keys() == set(ErrorKind)
