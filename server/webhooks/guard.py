"""Checks the hosts of webhooks: users name addresses, and the server can reach places that users cannot.

A name is resolved here, every address that it stands for is checked, and the connection is made to a checked address,
so that a name whose answer changes in between gains nothing. Without the operator's permission only addresses of the
public internet are reached: no loopback, private, link-local (cloud metadata), multicast or reserved ones, in any
notation or embedding.
"""

import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

import httpcore2

from server.webhooks.errors import AddressInvalid

LONGEST_URL: Final = 2000
_EMBEDDING: Final = tuple(
    map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96", "::ffff:0:0:0/96"))
)
"""IPv6 addresses that stand for IPv4 ones (NAT64, 6to4, Teredo, compatible, translated): refused as a whole."""

_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")

SocketOptions = Iterable[Any] | None


class AddressRefused(Exception):
    """A host has an address that messages may not go to."""


class Overdue(Exception):
    """The whole exchange took too long."""


def check_url(url: str, *, private: bool) -> str:
    """Return an address unchanged if messages may go there, as far as the text tells. Raises AddressInvalid.

    With `private`, the operator allows addresses of the own network, and plain http.
    """
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise AddressInvalid(f"it must be at most {LONGEST_URL} printable ASCII characters without spaces")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressInvalid(str(error)) from None
    if parts.scheme not in ({"https", "http"} if private else {"https"}):
        raise AddressInvalid("it must begin with https://" + (" or http://" if private else ""))
    if not parts.hostname or port == 0:
        raise AddressInvalid("it names no host, or port 0")
    if "@" in parts.netloc:
        raise AddressInvalid("it has a user or password in it; receivers know a message by its signature")
    if parts.fragment:
        raise AddressInvalid("it has a fragment (#...), which is never sent")
    host = parts.hostname
    # A host whose last label is a number is an address (WHATWG URL, 3.5). Systems read further notations of IPv4 than
    # four decimal numbers (127.1, 0x7f.1, 2130706433), each in its own way: they are refused, whatever they stand for.
    # What a name stands for is looked at whenever a message is sent.
    if _NAME.fullmatch(host) is None or _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        try:
            public = is_public(host)
        except ValueError:
            raise AddressInvalid(
                f"{host[:100]} is neither a name nor an address; write IPv4 as four decimal numbers, IPv6 in brackets"
            ) from None
    else:
        public = host.rstrip(".").rpartition(".")[2] != "localhost"  # RFC 6761, 6.3
    if not (public or private):
        raise AddressInvalid(
            f"{host} is not an address of the public internet; the server's operator can allow others "
            "(LUDUS_WEBHOOKS__PRIVATE_ADDRESSES)"
        )
    return url


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif any(ip in network for network in _EMBEDDING):
            return False
    return ip.is_global and not ip.is_multicast


class GuardedBackend(httpcore2.NetworkBackend):
    """Connects for one exchange: to checked addresses only, and no longer than until its deadline."""

    def __init__(self, *, private: bool, seconds: float) -> None:
        self._private = private
        self._deadline = time.monotonic() + seconds
        self._inner = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: SocketOptions = None,
    ) -> httpcore2.NetworkStream:
        """Connect to the first of the host's addresses that answers. Raises AddressRefused, Overdue."""
        failure: Exception = httpcore2.ConnectError(f"{host} has no address")
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(f"the name {host} cannot be resolved ({error})") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in infos))
        if not self._private and (refused := [address for address in addresses if not is_public(address)]):
            raise AddressRefused(f"{host} is {refused[0]}, which is not an address of the public internet")
        for address in addresses:
            try:
                stream = self._inner.connect_tcp(address, port, self._left(timeout), local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
            else:
                return _TimedStream(stream, self)
        raise failure

    def _left(self, timeout: float | None) -> float:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise Overdue
        return seconds if timeout is None else min(timeout, seconds)


class _TimedStream(httpcore2.NetworkStream):
    """A connection each of whose operations ends at the deadline of the whole: a receiver cannot drip."""

    def __init__(self, stream: httpcore2.NetworkStream, backend: GuardedBackend) -> None:
        self._stream = stream
        self._backend = backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._backend._left(timeout))  # noqa: SLF001  two halves of one thing

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._backend._left(timeout))  # noqa: SLF001

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        seconds = self._backend._left(timeout)  # noqa: SLF001
        return _TimedStream(self._stream.start_tls(ssl_context, server_hostname, seconds), self._backend)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
