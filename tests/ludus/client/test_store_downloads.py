"""Large files come from the artifact store itself, if clients can reach it."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from ludus.client import Client
from tests.ludus.client.test_transport import CONTENT, CUT_BYTES, BreakingLine, first
from tests.ports import free_port
from tests.s3 import ACCESS_KEY, SECRET_KEY, S3Server, needs_s3, serve_s3
from tests.server.app.world import CARTPOLE, World, open_world

pytestmark = [pytest.mark.s3, needs_s3]
SMALL = b"small"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with serve_s3(tmp_path_factory.mktemp("s3")) as running:
        yield running


@contextmanager
def stored(server: S3Server, folder: Path, public: str) -> Iterator[tuple[World, str]]:
    """Serve an API whose store clients reach at `public`; yields it, and a run with a large and a small file."""
    storage = {
        "url": server.bucket(f"test-{secrets.token_hex(4)}"),
        "public_endpoint": public,
        "redirect_bytes": len(CONTENT),
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
    }
    with open_world(folder, storage=storage) as world:
        trainer = world.claim(world.create(CARTPOLE)["id"]).start()
        trainer.save(100, {"large.onnx": CONTENT, "small.onnx": SMALL}, folder)
        yield world, trainer.run_id


@pytest.fixture
def line(server: S3Server) -> Iterator[BreakingLine]:
    """The way of clients to the store. It breaks twice."""
    line = BreakingLine(server.endpoint, first(2))
    yield line
    line.close()


def test_a_large_file_comes_from_the_store_without_a_token_and_goes_on_where_it_broke_off(
    server: S3Server, line: BreakingLine, tmp_path: Path
) -> None:
    with stored(server, tmp_path, line.address) as (world, run), Client(world.server, token="secret") as client:
        target = client.checkpoints.download(run, "latest", "large.onnx", tmp_path / "model.onnx")

    assert target.read_bytes() == CONTENT
    whole, *rest = line.heads
    assert "range:" not in whole
    begins = [int(head.partition("\r\nrange: bytes=")[2].partition("-")[0]) for head in rest]
    assert [round(begin / CUT_BYTES, 1) for begin in begins] == [1.0, 2.0]
    assert not any("secret" in head or "authorization:" in head for head in line.heads)


def test_a_small_file_comes_through_the_api(server: S3Server, line: BreakingLine, tmp_path: Path) -> None:
    with stored(server, tmp_path, line.address) as (world, run), Client(world.server) as client:
        target = client.checkpoints.download(run, "latest", "small.onnx", tmp_path / "model.onnx")

    assert (target.read_bytes(), line.heads) == (SMALL, [])


def test_a_store_that_the_client_cannot_reach_is_passed_over(server: S3Server, tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with stored(server, tmp_path, nowhere) as (world, run), Client(world.server) as client:
        target = client.checkpoints.download(run, "latest", "large.onnx", tmp_path / "model.onnx")

    assert target.read_bytes() == CONTENT


def test_a_request_that_does_not_ask_for_a_redirect_gets_the_file(server: S3Server, tmp_path: Path) -> None:
    with stored(server, tmp_path, server.endpoint) as (world, run):
        path = f"/v1/runs/{run}/checkpoints/latest/files/large.onnx"
        whole = world.http.get(path)
        redirect = world.http.get(path, params={"redirect": "true"})
        fetched = httpx2.get(redirect.headers["location"])

    assert (whole.status_code, whole.content) == (200, CONTENT)
    assert (redirect.status_code, redirect.content) == (307, b"")
    assert redirect.headers["etag"] == whole.headers["etag"]
    assert redirect.headers["repr-digest"] == whole.headers["repr-digest"]
    assert (fetched.content, fetched.headers["content-disposition"]) == (
        CONTENT,
        "attachment; filename*=UTF-8''large.onnx",
    )
