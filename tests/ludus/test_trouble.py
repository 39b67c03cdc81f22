"""Why a simulator cannot connect is said in one sentence, and only hopeless cases are given up."""

import http.server
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from ludus.simulator import CannotConnect, SessionRefused, connect
from ludus.trouble import unreachable
from ludus.wire import simulation_pb2 as pb
from ludus.wire.codes import CloseCode
from tests.contract.scenarios import refuse_spec
from tests.fakes import FakeServer, finish_after, refuse
from tests.toys.catch import Catch

TLS = Path(__file__).parent.parent / "data" / "tls"


def trouble(
    server: str, *, patience: float = 0.0, token: str | None = None, ca_file: Path | None = None
) -> tuple[str, str]:
    with pytest.raises(CannotConnect) as error:
        connect(Catch(), run="catch", server=server, token=token, ca_file=ca_file, patience_seconds=patience)
    return error.value.code, str(error.value)


@pytest.fixture
def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_nothing_listens(free_address: str) -> None:
    code, sentence = trouble(free_address)

    assert code == "nothing_listens"
    assert f"nothing listens at {free_address}" in sentence


def test_patience_is_kept_before_giving_up(free_address: str, caplog: pytest.LogCaptureFixture) -> None:
    code, sentence = trouble(free_address, patience=0.5)

    assert code == "nothing_listens"
    assert "gave up after" in sentence
    said = [record.message for record in caplog.records if record.name.startswith("ludus")]
    assert said == [f"nothing listens at {free_address}; trying again"]


def test_an_unknown_host() -> None:
    assert trouble("no-such-host.invalid:7070")[0] == "unknown_host"


def test_a_missing_and_a_wrong_token() -> None:
    with FakeServer(token="secret") as server:
        assert "wants a token, and none was given" in trouble(server.address)[1]
        code, sentence = trouble(server.address, token="wrong")

    assert code == "unauthenticated"
    assert "does not accept this token" in sentence


def test_an_unknown_run_is_named() -> None:
    def no_such_run(_: FakeServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
        refuse(context, grpc.StatusCode.NOT_FOUND, "run_not_found", f"There is no run {request.run!r}.")

    with FakeServer(join=no_such_run) as server:
        assert trouble(server.address) == ("run_not_found", "There is no run 'catch'.")


class Plain(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name in the base class
        """Be silent."""


@pytest.fixture
def http_address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Plain) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_the_port_of_something_else(http_address: str) -> None:
    code, sentence = trouble(http_address)

    assert code in {"not_a_gateway", "unavailable"}
    assert http_address in sentence


def test_another_grpc_server() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    code, sentence = trouble(f"127.0.0.1:{port}")

    server.stop(0).wait()
    assert code == "not_a_gateway"
    assert "not a Ludus gateway" in sentence


def test_tls_where_the_server_speaks_none() -> None:
    with FakeServer() as server:
        code, sentence = trouble(f"localhost:{server.port}", ca_file=TLS / "localhost.pem")

    assert code == "tls_mismatch"
    assert "does not speak TLS" in sentence


@pytest.fixture
def tls_address() -> Iterator[str]:
    key, certificate = (TLS / "localhost.key").read_bytes(), (TLS / "localhost.pem").read_bytes()
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    server.start()
    yield f"localhost:{port}"
    server.stop(0).wait()


def test_a_certificate_that_is_not_trusted(tls_address: str, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes((TLS / "other.pem").read_bytes())

    code, sentence = trouble(tls_address, ca_file=other)

    assert code == "tls_mismatch"
    assert "not trusted" in sentence


def test_no_tls_where_the_server_wants_it(tls_address: str) -> None:
    code, sentence = trouble(tls_address.replace("localhost", "127.0.0.1"))

    assert code in {"tls_mismatch", "unavailable"}
    assert "127.0.0.1" in sentence
    assert "TLS" in sentence


def test_a_refused_spec_repeats_the_servers_sentence() -> None:
    with FakeServer(refuse_spec) as server, pytest.raises(SessionRefused, match="Catcher has 4 observations") as error:
        connect(Catch(), run="catch", server=server.address)

    assert error.value.code == "spec_conflict"


def test_a_run_that_ended_before_is_an_ending() -> None:
    def ended(_: FakeServer, request: pb.JoinRequest, context: grpc.ServicerContext) -> pb.JoinResponse:
        refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "run_ended", "the run has ended", "CANCELLED")

    with FakeServer(join=ended) as server:
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


def test_a_session_over_tls(tls_address: str) -> None:
    """The TLS server above serves nothing, so being told that is proof of a working handshake."""
    assert trouble(tls_address, ca_file=TLS / "localhost.pem")[0] == "not_a_gateway"


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ("Failed to connect to remote host: connect: Connection refused (111)", "nothing_listens"),
        ("Ssl handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER", "tls_mismatch"),
        ("CERTIFICATE_VERIFY_FAILED: self-signed certificate", "tls_mismatch"),
        ("DNS resolution failed for games.example", "unknown_host"),
        ("Trying to connect an http1.x server", "not_a_gateway"),
        ("Socket closed", "unavailable"),
    ],
)
def test_what_grpc_says_in_prose_has_a_code(details: str, code: str) -> None:
    assert unreachable(details, "games.example:7070", tls=True).code == code


def test_the_simulation_is_closed_in_any_case(free_address: str) -> None:
    game = Catch()
    with pytest.raises(CannotConnect):
        connect(game, run="catch", server=free_address, patience_seconds=0)
    with FakeServer(finish_after(3)) as server:
        connect(game, run="catch", server=server.address)

    assert game.closed == 2
