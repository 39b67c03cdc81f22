"""A Ludus server for one call of `ludus learn`: `ludus up` in a child process, which ends with it.

The server's packages are started by name and never imported: users install this module without them.
"""

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ludus.child_process import ChildProcess
from ludus.cli.learn_options import LearnError

READY_SECONDS = 150.0
"""A little longer than `ludus up` itself waits for its parts."""
STOP_SECONDS = 45.0
"""A little longer than `ludus up` itself takes at most."""
LINES = 15


@dataclass(frozen=True)
class Addresses:
    """Addresses of a server."""

    api: str
    """Address of the HTTP API."""
    gateway: str
    """`host:port` at which it takes games."""
    own: bool = False
    """Whether this call started it, and ends it."""


@contextmanager
def embedded_stack(home: Path) -> Iterator[Addresses]:
    """Run a server that keeps its data in `home`, and end it. Raises LearnError where it can't start."""
    _check_installation()
    home.mkdir(parents=True, exist_ok=True)
    ready = home / "ready.json"
    ready.unlink(missing_ok=True)
    log = home / "up.log"
    options = ["--home", str(home), "--port", "0", "--gateway-port", "0", "--ready-file", str(ready)]
    with log.open("ab") as output:
        process = ChildProcess(
            # -P: a folder named `server` in the working directory must not hide the package
            [sys.executable, "-P", "-m", "ludus.cli", "up", *options],
            stdout=output,
            stderr=output,
            own_group=True,  # it does not get our Ctrl-C: the run is stopped before its server
            tied=True,
        )
    try:
        yield _await(process, ready, log)
    finally:
        process.interrupt()
        process.end(STOP_SECONDS)


def _check_installation() -> None:
    if not sys.platform.startswith("linux"):
        raise LearnError(
            "No server is named, and Ludus' own runs on Linux: name one with --server or LUDUS_SERVER, or start it in "
            "WSL2 or Docker."
        )
    missing = [name for name in ("server", "worker", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise LearnError(
            f"No server is named, and none can be started here, since {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed: name one with --server or LUDUS_SERVER, or run pip "
            "install '.[worker]' in Ludus' repository."
        )


def _await(process: ChildProcess, ready: Path, log: Path) -> Addresses:
    deadline = time.monotonic() + READY_SECONDS
    while not ready.exists():
        if process.exit_code() is not None:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:]
            raise LearnError("\n".join([f"The server did not start ({log}):", *(f"  {line}" for line in lines)]))
        if time.monotonic() > deadline:
            raise LearnError(f"The server was not ready after {READY_SECONDS:g} s; {log} says more.")
        time.sleep(0.05)
    addresses = json.loads(ready.read_text(encoding="utf-8"))
    return Addresses(addresses["api"], addresses["gateway"], own=True)
