"""The folders in which attempts keep their files, on the worker's host. Each is removed with its attempt or soon after.

An attempt holds a lock on its folder, which the kernel releases when the process ends, in whatever way. So a folder
that can be locked is not in use. On a file system without locks no folder is swept.
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FOLDER: Final = re.compile(r"run_[0-9A-Za-z]+-[0-9]+")
"""Names of attempts' folders: run and attempt number. Others may lie beside them."""


class Scratch:
    """The folder of one attempt, from its beginning to its end. One thread uses it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: int | None = None

    def make(self) -> None:
        """Create the folder and lock it against `sweep`. Raises OSError."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with _sweeping_waits(self.folder.parent):
            self.folder.mkdir(exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY)
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove the folder, and release the lock."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sweep(root: Path) -> list[str]:
    """Remove the folders of attempts whose process was killed; return their names."""
    swept = []
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        if not FOLDER.fullmatch(folder.name):
            continue
        with contextlib.suppress(OSError):  # it is in use, or another process was faster
            lock = os.open(folder, os.O_RDONLY)
            try:
                with _sweeping_waits(root):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder.name)
            finally:
                os.close(lock)
    return swept


@contextlib.contextmanager
def _sweeping_waits(root: Path) -> Iterator[None]:
    """Exclude other sweeps and creations: a folder that is made and not yet locked looks unused."""
    lock = os.open(root, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


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
        for family, address in LOOPBACK:  # a program may listen on either that players take for `localhost`
            try:
                with socket.socket(family) as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((address, port))
            except OSError as error:
                if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:  # those of a host without IPv6
                    raise PortTaken(
                        f"port {port} (simulators.unity_port) cannot be had on the worker's host ({error.strerror}); "
                        "end what listens there, an mlagents-learn perhaps, or choose another port"
                    ) from None
        yield
