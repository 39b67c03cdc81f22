"""Join: who gets a place where, and who gets an answer that says why not."""

import asyncio
import logging
import socket
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
import structlog
from sqlalchemy import select

from ludus.games.settings import GameSettings
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import REASON_METADATA, STATE_METADATA
from ludus.protocol.tickets import verify
from ludus.sdk.errors import Failure
from ludus.sdk.join import JoinClient, Target
from server.gateway.errors import STATUS
from server.gateway.service import PLACEMENT_THREADS, REPORTS_PER_MINUTE
from server.kit.db.database import CONNECTIONS, Database
from server.kit.errors import ErrorKind
from server.runs.models import Event
from tests.ludus.games.conftest import Playing
from tests.ports import free_port
from tests.server.gateway.conftest import KEY, TOKEN, GatewayThread, add_run
from tests.waiting import eventually

HEALTH = "/grpc.health.v1.Health/"


def test_a_simulator_gets_an_address_and_a_ticket_for_its_attempt(gateway: GatewayThread) -> None:
    run_id = add_run(gateway.database, "worker-1:41000")

    assignment = gateway.join(run="catch", session_id="one", label="catch x4").assignment

    assert assignment.address == "worker-1:41000"
    assert not assignment.relay
    assert assignment.run_id == run_id
    assert assignment.simulator_number == 0
    claims = verify(KEY.encode(), assignment.ticket, time.time())
    assert (claims.run_id, claims.attempt, claims.session_id, claims.number) == (run_id, 1, "one", 0)
    assert claims.generation == 3, "of the collector's process: its successor takes no ticket of its own"
    assert claims.expires_at == pytest.approx(time.time() + assignment.ticket_valid_seconds, abs=5)


def test_joining_again_gives_the_same_number_and_collector(gateway: GatewayThread) -> None:
    add_run(gateway.database, "worker-1:41000", "worker-1:41001", "worker-1:41002")
    first = [gateway.join(session_id=name).assignment for name in ("one", "two", "three")]

    again = [gateway.join(session_id=name).assignment for name in ("one", "two", "three")]

    assert [each.simulator_number for each in again] == [0, 1, 2]
    assert [each.address for each in again] == [each.address for each in first]


def test_simulators_are_spread_evenly_over_collectors(gateway: GatewayThread) -> None:
    add_run(gateway.database, "worker-1:41000", "worker-1:41001")

    addresses = Counter(gateway.join(session_id=f"s{number}").assignment.address for number in range(10))

    assert addresses == {"worker-1:41000": 5, "worker-1:41001": 5}


def test_simulators_that_give_up_while_the_database_is_busy_do_no_harm(gateway: GatewayThread) -> None:
    """The threads that place them go on after their calls have ended."""
    add_run(gateway.database, "worker-1:41000")
    gateway.join(session_id="first")
    metadata = [("authorization", f"Bearer {TOKEN}")]
    with ExitStack() as busy:
        for _ in range(CONNECTIONS):
            busy.enter_context(gateway.database.read()).connection()
        calls = [
            gateway.stub.Join.future(
                pb.JoinRequest(run="catch", session_id=f"s{number}", protocol_version=1), metadata=metadata, timeout=1
            )
            for number in range(5 * PLACEMENT_THREADS)
        ]
        assert {call.code() for call in calls} == {grpc.StatusCode.DEADLINE_EXCEEDED}

    assert gateway.join(session_id="last").assignment.address == "worker-1:41000"


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
        ({"session_id": "a/b"}, "bad_join"),
        ({"label": "x" * 5000}, "bad_join"),
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
    assert [log["event"] for log in logs] == ["call_failed"]


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


def test_every_kind_of_error_has_a_status() -> None:
    assert STATUS.keys() == set(ErrorKind)


class TestReports:
    """What is wrong on a game's machine becomes an event of its run."""

    def report(self, gateway: GatewayThread, token: str | None = TOKEN, **fields: str) -> None:
        given = {"run": "catch", "session_id": "game-1", "code": "never_dialled", "sentence": "It\ndoes not dial."}
        metadata = [("authorization", f"Bearer {token}")] if token else []
        gateway.stub.Report(pb.ReportRequest(**{**given, **fields}), metadata=metadata, timeout=10)

    def events(self, database: Database) -> list[Event]:
        with database.read() as session:
            return list(session.scalars(select(Event).where(Event.type == "simulator_problem")))

    def test_it_is_a_warning_with_its_sentence_code_and_session_id(self, gateway: GatewayThread) -> None:
        run_id = add_run(gateway.database, "worker-1:41000")

        self.report(gateway)

        (event,) = self.events(gateway.database)
        assert (event.run_id, event.level, event.message) == (run_id, "warning", "It\ndoes not dial.")
        assert event.data == {"session_id": "game-1", "code": "never_dialled"}

    def test_more_than_thirty_in_a_minute_of_one_run_are_dropped(self, gateway: GatewayThread) -> None:
        add_run(gateway.database, "worker-1:41000")
        add_run(gateway.database, "worker-1:41000", name="other")

        for _ in range(REPORTS_PER_MINUTE + 5):
            self.report(gateway)
        self.report(gateway, run="other")

        assert Counter(event.run_id for event in self.events(gateway.database)) == {
            "run-catch": REPORTS_PER_MINUTE,
            "run-other": 1,
        }

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"code": "Never Dialled"}, "bad_join"),
            ({"run": "nobody"}, "run_not_found"),
        ],
    )
    def test_malformed_reports_are_refused_by_field(
        self, gateway: GatewayThread, fields: dict[str, str], reason: str
    ) -> None:
        add_run(gateway.database, "worker-1:41000")

        with pytest.raises(grpc.RpcError) as error:
            self.report(gateway, **fields)

        assert refusal(error)[1] == reason
        assert not self.events(gateway.database)

    def test_a_report_needs_the_token(self, gateway: GatewayThread) -> None:
        add_run(gateway.database, "worker-1:41000")

        with pytest.raises(grpc.RpcError) as error:
            self.report(gateway, token=None)

        assert refusal(error)[0] is grpc.StatusCode.UNAUTHENTICATED

    def test_what_ludus_unity_prints_is_what_the_run_says(
        self, gateway: GatewayThread, caplog: pytest.LogCaptureFixture
    ) -> None:
        run_id = add_run(gateway.database, "worker-1:41000")
        target = Target(gateway.address, "catch", TOKEN)
        with Playing(GameSettings(target, editor_port=free_port(), timeout_wait_seconds=0.1)):
            eventually(lambda: self.events(gateway.database))

        (event,) = self.events(gateway.database)
        assert event.run_id == run_id
        assert event.message in [record.message for record in caplog.records if record.name == "ludus.games"]
        assert event.message.startswith("still waiting for the Editor")
        assert event.data == {"session_id": target.session_id, "code": "no_editor_plays"}

    def test_a_sentence_that_is_too_long_keeps_its_beginning_and_its_end(self, gateway: GatewayThread) -> None:
        add_run(gateway.database, "worker-1:41000")
        problem = Failure("exited", f"the game exited; \udcff {'ä' * 5000} its last line", permanent=False)

        trouble = self.report_from_bridge(Target(gateway.address, "catch", TOKEN), problem)

        (event,) = self.events(gateway.database)
        assert trouble == []
        assert event.message.startswith("the game exited; ? ää")
        assert event.message.endswith("ää its last line")
        assert 3990 <= len(event.message.encode()) <= 4000

    def test_words_that_cannot_be_left_are_a_matter_for_debugging(self, gateway: GatewayThread) -> None:
        problem = Failure("exited", "the game exited", permanent=False)

        (level, sentence), *more = self.report_from_bridge(Target(gateway.address, "nobody", TOKEN), problem)

        assert (level, more) == (logging.DEBUG, [])
        assert sentence.startswith("the problem exited was not reported to the run: ")

    def test_a_gateway_that_does_not_answer_takes_no_word_and_little_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ludus.sdk.join.REPORT_SECONDS", 0.3)
        with socket.create_server(("127.0.0.1", 0)) as mute:
            target = Target(f"127.0.0.1:{mute.getsockname()[1]}", "catch")
            began = time.monotonic()

            assert len(self.report_from_bridge(target, Failure("exited", "the game exited", permanent=False))) == 1

            assert time.monotonic() - began < 5

    def report_from_bridge(self, target: Target, problem: Failure) -> list[tuple[int, str]]:
        """Report a problem as a game's bridge does; return what is logged."""
        reported: list[tuple[int, str]] = []

        async def leave() -> None:
            async with JoinClient(target, lambda level, sentence: reported.append((level, sentence)), "test") as joiner:
                await joiner.report(target.session_id, problem)

        asyncio.run(leave())
        return reported
