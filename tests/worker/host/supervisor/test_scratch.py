"""Folders of attempts: what a killed worker leaves behind is swept, what is in use is not."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port
from worker.host.supervisor.scratch import PortTaken, Scratch, hold_port, sweep

HOLDS = """
import sys, time
from pathlib import Path
from worker.host.supervisor.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]))
scratch.make()
(scratch.folder / "state.json").write_text("{}")
print("made", flush=True)
time.sleep(60)
"""


def test_what_a_killed_worker_left_behind_is_swept_once_it_is_dead(tmp_path: Path) -> None:
    folder = tmp_path / "scratch" / "run_0abc-3"
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(folder)], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"

        while_it_lives = sweep(folder.parent)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    assert while_it_lives == []
    assert sweep(folder.parent) == ["run_0abc-3"]
    assert list(folder.parent.iterdir()) == []


def test_what_is_no_attempts_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "metrics").mkdir()
    (tmp_path / "run_0abc-3.txt").touch()

    assert sweep(tmp_path) == []
    assert sweep(tmp_path / "not yet there") == []
    assert {each.name for each in tmp_path.iterdir()} == {"metrics", "run_0abc-3.txt"}


def test_an_attempt_leaves_nothing_behind(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "run_0abc-1")
    scratch.make()
    (scratch.folder / "checkpoint-1").mkdir()

    scratch.remove()

    assert list(tmp_path.iterdir()) == []


@contextmanager
def another_run(port: int) -> Iterator["subprocess.Popen[str]"]:
    """Hold a port in a process of its own."""
    code = "from worker.host.supervisor.scratch import hold_port\n"
    code += f"with hold_port({port}):\n print('held', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_port_that_another_run_holds_is_refused_until_that_run_is_killed() -> None:
    port = free_port()
    with another_run(port) as other:
        with pytest.raises(PortTaken, match=f"port {port} .* another run on this worker's host"), hold_port(port):
            pass
        with hold_port(free_port()):
            pass  # other ports are free

        other.kill()
        other.wait()

        with hold_port(port):
            pass


def test_a_port_can_be_held_again_once_it_is_let_go() -> None:
    port = free_port()
    for _ in range(2):
        with hold_port(port):
            pass


@pytest.mark.parametrize(
    ("family", "address", "shared"),
    [
        (socket.AF_INET, "127.0.0.1", False),
        (socket.AF_INET, "0.0.0.0", False),
        (socket.AF_INET6, "::1", False),
        (socket.AF_INET6, "::", False),
        (socket.AF_INET6, "::", True),
    ],
    ids=["127.0.0.1", "all of IPv4", "::1", "everything", "everything, willing to share (ML-Agents)"],
)
def test_a_port_that_another_program_listens_on_is_refused(
    family: socket.AddressFamily, address: str, shared: bool
) -> None:
    with socket.socket(family) as listener:
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address, 0))
        listener.listen()
        port = listener.getsockname()[1]

        with pytest.raises(PortTaken, match=f"port {port} .* cannot be had .* end what listens there"), hold_port(port):
            pass


def test_connections_that_have_just_ended_keep_nobody_from_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()  # this end waits now, for a minute
            client.recv(1)

    with hold_port(port):
        pass
