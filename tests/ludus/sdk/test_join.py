"""A simulator joins with the token that it finds, waits as long as it may, and gives up where joining is pointless."""

from pathlib import Path

import grpc
import pytest

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codes import CloseCode
from ludus.sdk import CannotConnect, SessionRefused, connect
from ludus.sdk.contract.kit import refuse_spec
from ludus.sdk.contract.scripted import ScriptedServer, finish_after, refuse
from tests.ludus.sdk.test_errors import TLS, trouble
from tests.ports import free_port
from tests.toys.catch import Catch


def test_patience_is_kept_before_giving_up(caplog: pytest.LogCaptureFixture) -> None:
    free_address = f"127.0.0.1:{free_port()}"
    code, sentence = trouble(free_address, patience=0.5)

    assert code == "nothing_listens"
    assert "gave up after" in sentence
    said = [record.message for record in caplog.records if record.name.startswith("ludus")]
    assert said == [f"nothing listens at {free_address}; trying again"]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Let no token of the environment be there but those that the test sets."""
    for name in ("LUDUS_SIMULATOR_TOKEN", "LUDUS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_missing_token_is_said_with_the_variables_that_may_hold_it(variables: pytest.MonkeyPatch) -> None:
    variables.setenv("LUDUS_SIMULATOR_TOKEN", "")
    with ScriptedServer(token="secret") as server:
        code, sentence = trouble(server.address)

    assert code == "unauthenticated"
    assert "wants a token, and none was given: set LUDUS_SIMULATOR_TOKEN or LUDUS_TOKEN" in sentence


@pytest.mark.parametrize(
    ("environment", "given", "named"),
    [
        ({"LUDUS_TOKEN": "wrong"}, None, "does not accept the token in LUDUS_TOKEN "),
        ({"LUDUS_TOKEN": "secret", "LUDUS_SIMULATOR_TOKEN": "wrong"}, None, "the token in LUDUS_SIMULATOR_TOKEN "),
        ({"LUDUS_TOKEN": "secret", "LUDUS_SIMULATOR_TOKEN": "secret"}, "wrong", "the token that was given "),
        ({"LUDUS_TOKEN": "secret", "LUDUS_SIMULATOR_TOKEN": "secret"}, "", "none was given"),
    ],
)
def test_a_wrong_token_is_said_with_where_it_came_from(
    variables: pytest.MonkeyPatch, environment: dict[str, str], given: str | None, named: str
) -> None:
    for name, value in environment.items():
        variables.setenv(name, value)
    with ScriptedServer(token="secret") as server:
        code, sentence = trouble(server.address, token=given)

    assert code == "unauthenticated"
    assert named in sentence
    assert "secret" not in sentence


@pytest.mark.parametrize("token", ["schlüssel", "two\nlines"])
def test_a_token_that_grpc_would_not_send_is_refused_at_once_without_the_token(
    variables: pytest.MonkeyPatch, token: str
) -> None:
    variables.setenv("LUDUS_SIMULATOR_TOKEN", token)
    code, sentence = trouble("127.0.0.1:1")

    assert code == "unauthenticated"
    assert "the token in LUDUS_SIMULATOR_TOKEN has the character" in sentence
    assert token[:3] not in sentence


@pytest.mark.parametrize(
    "environment", [{"LUDUS_TOKEN": "secret"}, {"LUDUS_TOKEN": "another", "LUDUS_SIMULATOR_TOKEN": "secret"}]
)
def test_one_variable_is_enough_and_the_one_of_simulators_wins(
    variables: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        variables.setenv(name, value)

    with ScriptedServer(finish_after(3), token="secret") as server:
        ending = connect(Catch(), run="catch", server=server.address)

    assert ending.code is CloseCode.RUN_FINISHED


def test_a_token_without_the_scope_is_said_with_where_it_came_from(variables: pytest.MonkeyPatch) -> None:
    variables.setenv("LUDUS_TOKEN", "of-a-reader")

    def forbid(_: ScriptedServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
        refuse(context, grpc.StatusCode.PERMISSION_DENIED, "scope_missing", "This token is not for simulators.")

    with ScriptedServer(join=forbid) as server:
        code, sentence = trouble(server.address)

    assert code == "scope_missing"
    assert sentence == "This token is not for simulators (it was shown the token in LUDUS_TOKEN)"


def test_an_unknown_run_is_named() -> None:
    def no_such_run(_: ScriptedServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
        refuse(context, grpc.StatusCode.NOT_FOUND, "run_not_found", f"There is no run {request.run!r}.")

    with ScriptedServer(join=no_such_run) as server:
        assert trouble(server.address) == ("run_not_found", "There is no run 'catch'.")


def test_a_refused_spec_repeats_the_servers_sentence() -> None:
    with (
        ScriptedServer(refuse_spec) as server,
        pytest.raises(SessionRefused, match="Catcher has 4 observations") as error,
    ):
        connect(Catch(), run="catch", server=server.address)

    assert error.value.code == "spec_conflict"


def test_a_run_that_ended_before_is_an_ending() -> None:
    def ended(_: ScriptedServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
        refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "run_ended", "the run has ended", "CANCELLED")

    with ScriptedServer(join=ended) as server:
        ending = connect(Catch(), run="catch", server=server.address)

    assert ending.code is CloseCode.RUN_CANCELLED
    assert not ending.finished
    assert ending.sessions == 0


def test_files_of_no_use_are_said_at_once_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trouble("localhost:1", patience=60, ca_file=tmp_path / "none.pem") == (
        "tls_files",
        f"TLS cannot be spoken: the authority {tmp_path}/none.pem cannot be used (No such file or directory)",
    )
    monkeypatch.setenv("LUDUS_CLIENT_CERTIFICATE", str(TLS / "other.pem"))
    monkeypatch.setenv("LUDUS_CLIENT_KEY", str(TLS / "localhost.key"))
    code, sentence = trouble("localhost:1", patience=60, ca_file=TLS / "localhost.pem")
    assert code == "tls_files"
    assert "the key is that of another certificate" in sentence


def test_the_simulation_is_closed_in_any_case() -> None:
    game = Catch()
    with pytest.raises(CannotConnect):
        connect(game, run="catch", server=f"127.0.0.1:{free_port()}", connect_timeout_seconds=0)
    with ScriptedServer(finish_after(3)) as server:
        connect(game, run="catch", server=server.address)

    assert game.closed == 2
