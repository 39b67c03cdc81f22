"""Downloads over connections that break: resumed where they were, verified at the end."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ludus.client import Client, DownloadDamaged, ProblemAnswer, ServerUnreachable, backoff
from tests.factories import give_up
from tests.server.app.world import CARTPOLE, Trainer, World, open_world

CONTENT = bytes(range(256)) * 8000
CUT_BYTES = 600_000
"""After so many bytes of an answer the connection breaks."""


Cut = Callable[[int], int | None]
"""Says for the connection of a number, from 0 on, after how many bytes of the answer it breaks; None: it does not."""


class BreakingLine:
    """A line to a server, one request per connection, that breaks as it is told."""

    def __init__(self, server: str, cut: Cut) -> None:
        self.heads: list[str] = []
        """What was asked, connection by connection."""
        self._cut = cut
        self._server = urlsplit(server)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                with client, socket.create_connection((self._server.hostname, self._server.port)) as server:
                    self._forward(client, server)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(65536)
        left = self._cut(len(self.heads))
        self.heads.append(head.decode().lower())
        server.sendall(head.replace(b"Connection: keep-alive", b"Connection: close"))
        while left is None or left > 0:
            block = server.recv(65536 if left is None else min(left, 65536))
            if not block:
                return
            client.sendall(block)
            left = None if left is None else left - len(block)


def first(count: int) -> Cut:
    """Break the first so many."""
    return lambda number: CUT_BYTES if number < count else None


def meanwhile(act: Callable[[], object]) -> Cut:
    """Break the first one, and do something before the second."""

    def cut(number: int) -> int | None:
        if number == 0:
            return CUT_BYTES
        act()
        return None

    return cut


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("downloads")) as world:
        yield world


@pytest.fixture
def trainer(world: World, tmp_path: Path) -> Trainer:
    trainer = world.claim(world.create(CARTPOLE)["id"]).start()
    trainer.save(100, {"CartPole.onnx": CONTENT}, tmp_path)
    return trainer


@contextmanager
def breaking(world: World, cut: Cut) -> Iterator[tuple[BreakingLine, Client]]:
    line = BreakingLine(world.server, cut)
    try:
        with Client(line.address) as client:
            yield line, client
    finally:
        line.close()


def test_a_download_that_breaks_off_goes_on_where_it_was(world: World, trainer: Trainer, tmp_path: Path) -> None:
    with breaking(world, first(2)) as (line, client):
        target = client.checkpoints.download(trainer.run_id, "latest", "CartPole.onnx", tmp_path / "model.onnx")

    assert target.read_bytes() == CONTENT
    whole, *rest = line.heads
    assert "range:" not in whole
    begins = [int(head.partition("\r\nrange: bytes=")[2].partition("-")[0]) for head in rest]
    assert [round(begin / CUT_BYTES, 1) for begin in begins] == [1.0, 2.0]
    assert all('\r\nif-range: "' in head for head in rest)


def test_a_file_that_was_replaced_meanwhile_is_the_new_one_and_whole(
    world: World, trainer: Trainer, tmp_path: Path
) -> None:
    newer = bytes(reversed(CONTENT))
    replace = meanwhile(lambda: trainer.save(200, {"CartPole.onnx": newer}, tmp_path))
    with breaking(world, replace) as (line, client):
        target = client.checkpoints.download(trainer.run_id, "latest", "CartPole.onnx", tmp_path / "model.onnx")

    assert target.read_bytes() == newer
    assert len(line.heads) == 2


def test_what_is_damaged_is_not_kept_however_it_arrived(world: World, trainer: Trainer, tmp_path: Path) -> None:
    stored = world.services.settings.storage.root / f"runs/{trainer.run_id}/1/checkpoints/100/CartPole.onnx"
    stored.write_bytes(CONTENT[:-1] + b"?")
    target = tmp_path / "models" / "model.onnx"
    target.parent.mkdir()
    target.write_bytes(b"an older model")

    with breaking(world, first(1)) as (line, client), pytest.raises(DownloadDamaged):
        client.checkpoints.download(trainer.run_id, "latest", "CartPole.onnx", target)

    assert len(line.heads) == 2
    assert [*target.parent.iterdir()] == [target]
    assert target.read_bytes() == b"an older model"


def test_a_refusal_in_the_middle_ends_a_download_at_once(world: World, trainer: Trainer, tmp_path: Path) -> None:
    checkpoint = world.http.get(f"/v1/runs/{trainer.run_id}/checkpoints/latest").json()["id"]
    delete = meanwhile(lambda: give_up(world.services.database, checkpoint))
    with breaking(world, delete) as (line, client), pytest.raises(ProblemAnswer) as refused:
        client.checkpoints.download(trainer.run_id, checkpoint, "CartPole.onnx", tmp_path / "model.onnx")

    assert refused.value.code == "checkpoint_deleted"
    assert len(line.heads) == 2
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.long
def test_a_line_that_stays_broken_is_given_up(
    world: World, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "RETRY_SECONDS", 0.5)
    with breaking(world, lambda number: 0 if number else CUT_BYTES) as (line, client), pytest.raises(ServerUnreachable):
        client.checkpoints.download(trainer.run_id, "latest", "CartPole.onnx", tmp_path / "model.onnx")

    assert len(line.heads) > 2
    assert not (tmp_path / "model.onnx").exists()


def test_a_download_that_never_began_is_not_tried_again(world: World, trainer: Trainer, tmp_path: Path) -> None:
    with breaking(world, lambda _: 0) as (line, client), pytest.raises(ServerUnreachable):
        client.checkpoints.download(trainer.run_id, "latest", "CartPole.onnx", tmp_path / "model.onnx")

    assert len(line.heads) == 1


def test_a_log_is_downloaded_byte_for_byte(world: World, trainer: Trainer, tmp_path: Path) -> None:
    trainer.write_log("trainer.log", b"\xff\xfe not text \x00\n", tmp_path)

    with Client(world.server) as client:
        target = client.logs.download(trainer.run_id, 1, "trainer.log", tmp_path / "downloaded.log")

    assert target.read_bytes() == b"\xff\xfe not text \x00\n"
