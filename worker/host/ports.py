"""Ports that a run asks for by number, and that only one run of a host can have."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_NO_SUCH_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
"""Errors of a host without IPv6."""


class PortTaken(Exception):
    """Another run, or another program, has the port."""


@contextmanager
def hold_port(port: int) -> Iterator[None]:
    """Keep a TCP port of this host's loopback for the collectors of one attempt. Raises `PortTaken`.

    Collectors share it with SO_REUSEPORT, and with that option a second run would share it, too, and be dealt half of
    the players. The lock is a name in the kernel's table of sockets: it is gone with its process, however that ends,
    and it belongs to the same network namespace as the port.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0ludus/unity-port/{port}")
        except OSError:
            raise PortTaken(
                f"port {port} (simulators.unity_port) serves another run on this worker's host; wait for it to end, or "
                "choose another port"
            ) from None
        _check_free(port)
        yield


def _check_free(port: int) -> None:
    """Raise `PortTaken` if a program listens on either address that players may take for `localhost`."""
    for family, address in LOOPBACK:
        try:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno in _NO_SUCH_ADDRESS:
                continue
            raise PortTaken(
                f"port {port} (simulators.unity_port) cannot be had on the worker's host ({error.strerror}); end what "
                "listens there, an mlagents-learn perhaps, or choose another port"
            ) from None
