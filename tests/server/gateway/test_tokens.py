"""Simulators' tokens: of a project, of one run, revoked, and those that are for something else."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from pydantic import SecretStr
from sqlalchemy import select, update

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.options import REASON_METADATA
from ludus.schemas.tokens import Scope
from server.access.models import Token
from server.access.service import TokenService
from server.gateway.main import check
from server.gateway.service import FAILURES_PER_MINUTE, REPORTS_PER_MINUTE
from server.kit.db.database import Database
from server.kit.listening import GatewaySettings
from server.kit.ports import CannotStart
from server.kit.principal import everything
from server.runs.models import Event, Run
from tests.server.gateway.conftest import KEY, GatewayThread, add_run


@pytest.fixture
def gateway(database: Database) -> Iterator[GatewayThread]:
    settings = GatewaySettings(port=0, require_token=True, ticket_key=SecretStr(KEY))
    with GatewayThread(settings, database) as thread:
        yield thread


def token(database: Database, scope: Scope = Scope.SIMULATE, project: str = "default", **fields: Any) -> str:
    with database.write() as session:
        return TokenService(session, everything("test")).create("t", [scope], project=project, **fields).text


def reason(gateway: GatewayThread, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        gateway.join(**fields)
    call: Any = error.value
    return call.code(), dict(call.trailing_metadata())[REASON_METADATA]


@pytest.mark.parametrize("scope", [Scope.SIMULATE, Scope.RUN, Scope.ADMIN])
def test_a_token_for_simulators_joins_runs_of_its_project(gateway: GatewayThread, scope: Scope) -> None:
    run = add_run(gateway.database, "worker-1:41000")

    assert gateway.join(token=token(gateway.database, scope)).assignment.run_id == run


def test_a_token_for_looking_joins_nothing(gateway: GatewayThread) -> None:
    add_run(gateway.database, "worker-1:41000")

    refused = reason(gateway, token=token(gateway.database, Scope.READ))

    assert refused == (grpc.StatusCode.PERMISSION_DENIED, "scope_missing")


def test_a_run_of_another_project_is_not_there(gateway: GatewayThread) -> None:
    run = add_run(gateway.database, "worker-1:41000")
    with gateway.database.write() as session:
        session.execute(update(Run).where(Run.id == run).values(project="ours"))

    for name in (run, "catch"):
        refused = reason(gateway, run=name, token=token(gateway.database, project="theirs"))
        assert refused == (grpc.StatusCode.NOT_FOUND, "run_not_found")
    assert gateway.join(token=token(gateway.database, project="ours")).assignment.run_id == run
    assert gateway.join(token=token(gateway.database, project="*")).assignment.run_id == run


def test_a_token_of_one_run_joins_and_reports_on_no_other(gateway: GatewayThread) -> None:
    mine, other = add_run(gateway.database, "worker-1:41000"), add_run(gateway.database, "worker-1:41001", name="pong")
    bound = token(gateway.database, run=mine)

    assert gateway.join(run="catch", token=bound).assignment.run_id == mine
    assert reason(gateway, run=other, token=bound) == (grpc.StatusCode.PERMISSION_DENIED, "run_forbidden")
    report = pb.ReportRequest(run=other, session_id="one", code="crashed", sentence="It crashed.")
    with pytest.raises(grpc.RpcError) as error:
        gateway.stub.Report(report, metadata=[("authorization", f"Bearer {bound}")], timeout=10)
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]  # it is a call, too


@pytest.mark.long
def test_reports_of_strangers_do_not_silence_those_of_a_run(gateway: GatewayThread) -> None:
    run = add_run(gateway.database, "worker-1:41000")
    other = add_run(gateway.database, "worker-1:41001", name="pong")
    with gateway.database.write() as session:
        session.execute(update(Run).where(Run.id == other).values(project="theirs"))
    strangers = [token(gateway.database, project="theirs"), token(gateway.database, project="theirs", run=other)]

    def report(given: str, named: str) -> None:
        request = pb.ReportRequest(run=named, session_id="one", code="crashed", sentence="It crashed.")
        gateway.stub.Report(request, metadata=[("authorization", f"Bearer {given}")], timeout=10)

    for given in strangers:
        for named in (run, "catch"):
            for _ in range(REPORTS_PER_MINUTE):
                with pytest.raises(grpc.RpcError, match=r"run_not_found|There is no run"):
                    report(given, named)
    report(token(gateway.database), "catch")

    with gateway.database.read() as session:
        assert session.scalars(select(Event.run_id).where(Event.type == "simulator_problem")).all() == [run]


def test_a_revoked_token_joins_no_more_within_seconds(gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.access.checker.REMEMBERED_SECONDS", 0.0)
    add_run(gateway.database, "worker-1:41000")
    given = token(gateway.database)
    gateway.join(token=given)

    with gateway.database.write() as session:
        session.execute(update(Token).values(revoked_at=1.0))

    assert reason(gateway, token=given) == (grpc.StatusCode.UNAUTHENTICATED, "token_refused")


def test_guesses_are_limited_and_a_right_token_of_the_same_address_is_accepted(gateway: GatewayThread) -> None:
    add_run(gateway.database, "worker-1:41000")
    known = token(gateway.database)

    refusals = [reason(gateway, token=f"guess-{n}")[1] for n in range(FAILURES_PER_MINUTE + 2)]

    assert refusals == ["unauthenticated"] * FAILURES_PER_MINUTE + ["too_many_requests"] * 2
    gateway.join(token=known)


def test_a_gateway_that_demands_tokens_may_listen_to_the_world() -> None:
    check(GatewaySettings(host="0.0.0.0", require_token=True))
    with pytest.raises(CannotStart, match="REQUIRE_TOKEN"):
        check(GatewaySettings(host="0.0.0.0"))


def test_a_name_that_two_projects_have_needs_a_token_of_one_of_them_or_the_runs_id(gateway: GatewayThread) -> None:
    """Otherwise anybody could draw the simulators of a machine that serves all projects to a run of their own."""
    mine = add_run(gateway.database, "worker-1:41000", name="mine")
    theirs = add_run(gateway.database, "worker-1:41001", name="theirs")
    with gateway.database.write() as session:
        session.execute(update(Run).values(name="nightly"))
        session.execute(update(Run).where(Run.id == theirs).values(project="theirs", created_at=Run.created_at + 100))
    everywhere = token(gateway.database, project="*")
    report = pb.ReportRequest(run="nightly", session_id="one", code="crashed", sentence="It crashed.")

    assert gateway.join(run="nightly", token=token(gateway.database)).assignment.run_id == mine
    assert gateway.join(run=mine, token=everywhere).assignment.run_id == mine
    assert reason(gateway, run="nightly", token=everywhere) == (grpc.StatusCode.FAILED_PRECONDITION, "name_ambiguous")
    with pytest.raises(grpc.RpcError, match="Several projects have a run named 'nightly': default, theirs"):
        gateway.stub.Report(report, metadata=[("authorization", f"Bearer {everywhere}")], timeout=10)
