"""Ports of the embedded stack: taken before anything starts, and asked until everything answers."""

import errno
import http.client
import json
import socket
import ssl
from dataclasses import dataclass
from datetime import datetime

from ludus.protocol.tls import TlsFiles


@dataclass(frozen=True)
class Listener:
    """A part that needs a port, and where an operator chooses it."""

    name: str
    option: str
    variable: str


API = Listener("HTTP API", "--port", "LUDUS_API__PORT")
GATEWAY = Listener("gateway", "--gateway-port", "LUDUS_GATEWAY__PORT")
WEBSOCKETS = Listener("gateway's WebSockets", "another --gateway-port", "LUDUS_GATEWAY__WEBSOCKET_PORT")


class CannotStart(Exception):
    """`ludus up` can't start; the message says why and what to do."""

    exit_code = 1


class PortInUse(CannotStart):
    """Another process listens where one of ours should."""

    exit_code = 2

    def __init__(self, host: str, port: int, listener: Listener) -> None:
        super().__init__(
            f"Port {port} on {host} is already in use, and the {listener.name} needs it: "
            f"stop what listens there, or choose another port with {listener.option} or {listener.variable}."
        )


def listen(host: str, port: int) -> socket.socket:
    """Open the API's listening socket. It outlives the api process: while that restarts, clients wait in line."""
    try:
        return socket.create_server((host, port), family=_family(host), backlog=512)
    except OSError as error:
        raise _explain(error, host, port, API) from None


def reserve(host: str, port: int, listener: Listener = GATEWAY) -> socket.socket:
    """Take a port for the gateway, any free one if it is 0, without listening: gRPC can't be given an open socket.

    As long as the socket that is returned is open, the kernel gives the port to no process by chance, while one that
    names it can listen on it: both sides set SO_REUSEADDR, and this one does not listen.
    """
    reserved = socket.socket(_family(host))
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError as error:
        reserved.close()
        raise _explain(error, host, port, listener) from None
    return reserved


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _explain(error: OSError, host: str, port: int, listener: Listener) -> CannotStart:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(host, port, listener)
    return CannotStart(f"The {listener.name} can't listen on {host}, port {port}: {error.strerror}.")


def address(host: str, port: int) -> str:
    """Join host and port as a client on this machine writes them."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  a comparison, nothing is bound
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listens(where: str) -> bool:
    """Return whether a process accepts connections at `host:port`."""
    host, _, port = where.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def connect_api(where: str, tls: TlsFiles | None, seconds: float) -> http.client.HTTPConnection:
    """Return a connection to this machine's own API at `host:port`.

    Its certificate is not verified: it is for another name than this machine's loopback. Where clients must
    show one, the API's own is shown, which its authority may have signed or not.
    """
    if tls is None:
        return http.client.HTTPConnection(where, timeout=seconds)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if tls.client_ca is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return http.client.HTTPSConnection(where, timeout=seconds, context=context)


def api_is_ready(where: str, token: str | None, since: float, tls: TlsFiles | None = None) -> bool:
    """Tell whether the API at `host:port` answers, its database too, and a worker reported to it after `since`.

    Without a token, from an API that demands one, nothing of workers can be seen: then the first answer is enough. So
    is being turned away by one that wants a certificate of another authority than its own is of.
    """
    try:
        if _get(where, "/readyz", token, tls)[0] != 200:
            return False
        status, body = _get(where, "/v1/workers", token, tls)
        return (token is None and status == 401) or (
            status == 200
            and any(
                worker["stopped_at"] is None and datetime.fromisoformat(worker["heartbeat_at"]).timestamp() >= since
                for worker in json.loads(body)["workers"]
            )
        )
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        return turned_away(error, tls)


def turned_away(error: Exception, tls: TlsFiles | None) -> bool:
    """Whether an API that wants certificates has hung up on the one that it was shown: it serves, for others."""
    return tls is not None and tls.client_ca is not None and isinstance(error, ConnectionResetError | ssl.SSLError)


def _get(where: str, path: str, token: str | None, tls: TlsFiles | None) -> tuple[int, bytes]:
    connection = connect_api(where, tls, 2)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
