"""A real server for the tests of the client and of the command line."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from server.kit.settings import Settings


class ServerProcess:
    """`ludus server` in a process of its own, on a port that stays the same when it is started again."""

    def __init__(self, home: Path) -> None:
        self.home = home
        database = Database.from_settings(Settings(home=home).database)
        upgrade_database(database)
        database.close()
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.server = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; clients wait in line until it accepts."""
        descriptor = self.listening.fileno()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ludus.cli", "server", "--fd", str(descriptor)],
            pass_fds=(descriptor,),
            env={**os.environ, "LUDUS_HOME": str(self.home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """End the process with a signal and return its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def close(self) -> None:
        """End everything."""
        if self.process is not None and self.process.poll() is None:
            self.end()
        self.listening.close()


@contextmanager
def server_process(home: Path) -> Iterator[ServerProcess]:
    """Run a server process."""
    process = ServerProcess(home)
    process.start()
    try:
        yield process
    finally:
        process.close()
