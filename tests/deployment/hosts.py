"""Hosts on a network of their own: namespaces of the kernel (network, name, mounts), joined by a virtual switch.

Each host is a thread of this process that has left the namespaces of the others. What the thread starts, or opens,
belongs to its host. The namespaces have no names: the kernel removes them, with all addresses and firewalls, when the
last process in them has ended; and it kills what a host has started when its thread ends, so that a test that is killed
leaves nothing behind, too.
"""

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x20000, 0x4000000, 0x40000000  # linux/sched.h
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000  # linux/mount.h
PREFIX = 24
CALL_SECONDS = 60.0

_libc = ctypes.CDLL(None, use_errno=True)


def skip_without_namespaces() -> None:
    """Skip the test, with a sentence, where hosts cannot be made."""
    for tool, package in (
        ("ip", "iproute2"),
        ("nft", "nftables"),
        ("unshare", "util-linux"),
        ("setpriv", "util-linux"),
    ):
        if shutil.which(tool) is None:
            pytest.skip(f"no hosts can be made: `{tool}` is missing (Debian: {package})")
    probe = """
        ip link add probe0 type veth peer name probe1
        ip link add probe2 type bridge
        nft add table inet probe
        mount -t tmpfs tmpfs /var/lib
        echo 1 > /proc/sys/net/ipv4/ip_forward
    """
    made = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "sh", "-ec", probe], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no hosts can be made: this needs root and network namespaces ({made.stderr.strip()})")


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, flags: int) -> None:
    _checked(_libc.mount(source.encode(), target.encode(), None, flags, None), f"mount {target}")


class Host:
    """One host: a name, a network stack, and files of its own in /etc."""

    def __init__(self, name: str, etc: Mapping[str, Path] | None = None) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._started: list[subprocess.Popen[bytes]] = []
        self.id = self.do(self._leave, etc or {})

    def _leave(self, etc: Mapping[str, Path]) -> int:
        """Leave the namespaces of this process, and return the thread's id."""
        _checked(_libc.unshare(CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS), "unshare")
        _mount("none", "/", MS_REC | MS_PRIVATE)
        socket.sethostname(self.name)
        for file, source in etc.items():
            if Path("/etc", file).exists():
                _mount(str(source), f"/etc/{file}", MS_BIND)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return threading.get_native_id()

    def do(
        self, work: Callable[Parameters, Value], /, *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Value:
        """Return what a function returns when it is called on this host."""
        return self._thread.submit(work, *arguments, **named).result(CALL_SECONDS)

    def run(self, *command: str, said: str | None = None) -> str:
        """Run a command to its end, and return its output. Raises where it fails."""
        done = self.do(
            subprocess.run, command, input=said, capture_output=True, text=True, check=False, timeout=CALL_SECONDS
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {command} failed: {done.stdout}{done.stderr}")
        return str(done.stdout)

    def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path, **options: Any) -> "Process":
        """Start a process, which ends with this host."""
        started = self.do(self._start, command, environment, log, options)
        self._started.append(started)
        return started

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, options: Mapping[str, Any]
    ) -> "Process":
        with log.open("ab") as output:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                start_new_session=True,
                **options,
            )

    def filter(self, rules: str) -> None:
        """Load a firewall."""
        self.run("nft", "-f", "-", said=rules)

    def close(self) -> None:
        """End what was started here; the rest goes with the thread."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self._thread.shutdown()


Process = subprocess.Popen[bytes]


class Switch:
    """A network in whose middle there is a host with a bridge. Cables can be pulled out of it and put back."""

    def __init__(self) -> None:
        self._host = Host("switch")
        self._host.run("ip", "link", "add", "bridge", "type", "bridge")
        self._host.run("ip", "link", "set", "bridge", "up")

    def connect(self, host: Host, address: str, *more: str) -> None:
        """Give a host a cable to this switch, and addresses."""
        cable(self._host, host.name, host, "eth0", address, *more)
        self._host.run("ip", "link", "set", host.name, "master", "bridge", "up")

    def pull(self, host: Host) -> None:
        """Pull a host's cable: from now on nothing comes through, and nobody is told."""
        self._host.run("ip", "link", "set", host.name, "down")

    def plug(self, host: Host) -> None:
        """Put the cable back."""
        self._host.run("ip", "link", "set", host.name, "up")

    def close(self) -> None:
        """Take the network away."""
        self._host.close()


def cable(near: Host, near_name: str, far: Host, far_name: str, *addresses: str) -> None:
    """Lay a cable between two hosts; the far end gets addresses."""
    end = ["peer", "name", far_name, "netns", str(far.id)]
    near.run("ip", "link", "add", near_name, "type", "veth", *end)
    for address in addresses:
        far.run("ip", "address", "add", f"{address}/{PREFIX}", "dev", far_name)
    far.run("ip", "link", "set", far_name, "up")
