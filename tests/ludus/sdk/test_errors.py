"""Why a simulator cannot connect is said in one sentence, and only hopeless cases are given up."""

import http.server
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from ludus.sdk import CannotConnect, connect
from ludus.sdk.contract.scripted import ScriptedServer
from ludus.sdk.errors import unreachable
from tests.ports import free_port
from tests.toys.catch import Catch

TLS = Path(__file__).parents[2] / "data" / "tls"


def trouble(
    server: str, *, patience: float = 0.0, token: str | None = None, ca_file: Path | None = None
) -> tuple[str, str]:
    with pytest.raises(CannotConnect) as error:
        connect(Catch(), run="catch", server=server, token=token, ca_file=ca_file, connect_timeout_seconds=patience)
    return error.value.code, str(error.value)


@pytest.fixture
def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def test_nothing_listens(free_address: str) -> None:
    code, sentence = trouble(free_address)

    assert code == "nothing_listens"
    assert f"nothing listens at {free_address}" in sentence


def test_an_unknown_host() -> None:
    assert trouble("no-such-host.invalid:7070")[0] == "unknown_host"


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
    with ScriptedServer() as server:
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


def test_a_session_over_tls(tls_address: str) -> None:
    """The TLS server above serves nothing, so being told that is proof of a working handshake."""
    assert trouble(tls_address, ca_file=TLS / "localhost.pem")[0] == "not_a_gateway"


def test_a_certificate_for_another_name() -> None:
    key, certificate = (TLS / "localhost.key").read_bytes(), (TLS / "localhost.pem").read_bytes()
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.2:0", grpc.ssl_server_credentials([(key, certificate)]))
    server.start()

    code, sentence = trouble(f"127.0.0.2:{port}", ca_file=TLS / "localhost.pem")

    server.stop(0).wait()
    assert code == "tls_mismatch"
    assert "is for another name" in sentence


def hang_up(connection: socket.socket) -> None:
    connection.close()


def hang_up_after_a_word(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.close()


def reset_after_a_word(connection: socket.socket) -> None:
    """End as a process does that is killed with something unread."""
    connection.recv(10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("ca_file", [None, TLS / "localhost.pem"], ids=["plain", "tls"])
@pytest.mark.parametrize("ending", [hang_up, hang_up_after_a_word, reset_after_a_word])
def test_a_server_that_dies_while_it_is_connected_to_is_tried_again(
    ending: Callable[[socket.socket], None], ca_file: Path | None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    ending(server.accept()[0])

        threading.Thread(target=serve, daemon=True).start()
        code, sentence = trouble(f"127.0.0.1:{server.getsockname()[1]}", patience=0.5, ca_file=ca_file)
        server.shutdown(socket.SHUT_RDWR)

    assert code == "unavailable"
    assert "it may be starting or ending" in sentence
    assert "gave up after" in sentence, "it was tried more than once"


NEVER = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:7070: "


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ("Failed to connect to remote host: connect: Connection refused (111)", "nothing_listens"),
        ("Ssl handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER", "tls_mismatch"),
        ("CERTIFICATE_VERIFY_FAILED: self-signed certificate", "tls_mismatch"),
        (f"{NEVER}Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL", "tls_mismatch"),
        ("DNS resolution failed for games.example", "unknown_host"),
        ("Trying to connect an http1.x server", "not_a_gateway"),
        (f"{NEVER}Socket closed", "unavailable"),
        (f"{NEVER}Handshake read failed (recvmsg:Connection reset by peer (104))", "unavailable"),
        ("Socket closed", "connection_lost"),
        ("recvmsg:Connection reset by peer (104)", "connection_lost"),
    ],
)
def test_what_grpc_says_in_prose_has_a_code(details: str, code: str) -> None:
    assert unreachable(details, "games.example:7070", tls=True).code == code


@pytest.mark.parametrize("tls", [False, True])
def test_a_connection_that_breaks_after_an_answer_is_no_matter_of_tls(tls: bool) -> None:
    for details in ("Socket closed", f"{NEVER}Socket closed", f"{NEVER}Handshake read failed (Socket closed)"):
        failure = unreachable(details, "games.example:7070", tls=tls, answered=True)

        assert failure.code == "connection_lost"
        assert not failure.permanent
        assert "TLS" not in failure.sentence
