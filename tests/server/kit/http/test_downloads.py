"""Parts of files over HTTP, as RFC 9110 has them."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.kit.http.downloads import part_of
from server.kit.http.errors import RangeNotSatisfiable
from tests.server.app.world import World

CONTENT = bytes(range(256)) * 3000
"""More than one block."""
SIZE = len(CONTENT)
ETAG = f'"{hashlib.sha256(CONTENT).hexdigest()}"'


@pytest.fixture(scope="module", params=["checkpoint", "log"])
def path(request: pytest.FixtureRequest, world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file that holds CONTENT."""
    trainer = world.claim(world.create()["id"]).start()
    scratch = tmp_path_factory.mktemp("files")
    if request.param == "checkpoint":
        trainer.save(100, {"state.safetensors": CONTENT}, scratch)
        return f"/v1/runs/{trainer.run_id}/checkpoints/latest/files/state.safetensors"
    trainer.write_log("trainer.log", CONTENT, scratch)
    return f"/v1/runs/{trainer.run_id}/attempts/1/logs/trainer.log/file"


def test_a_whole_file_says_that_parts_can_be_had(world: World, path: str) -> None:
    answer = world.http.get(path)

    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert (answer.headers["accept-ranges"], answer.headers["etag"]) == ("bytes", ETAG)
    assert "content-range" not in answer.headers


@pytest.mark.parametrize(
    ("wanted", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=1000-300999", 1000, 300_999),
        ("bytes=500000-", 500_000, SIZE - 1),
        ("bytes=-10", SIZE - 10, SIZE - 1),
        (f"bytes=-{2 * SIZE}", 0, SIZE - 1),
        (f"bytes=5-{2 * SIZE}", 5, SIZE - 1),
        ("Bytes= 7-8", 7, 8),
    ],
)
def test_a_part_is_exactly_what_was_asked_for(world: World, path: str, wanted: str, first: int, last: int) -> None:
    answer = world.http.get(path, headers={"Range": wanted})

    assert (answer.status_code, answer.content) == (206, CONTENT[first : last + 1])
    assert answer.headers["content-range"] == f"bytes {first}-{last}/{SIZE}"
    assert answer.headers["etag"] == ETAG


@pytest.mark.parametrize("wanted", [f"bytes={SIZE}-", f"bytes={SIZE}-{SIZE + 5}", "bytes=-0", f"bytes={10**30}-"])
def test_a_part_that_is_not_there_is_a_problem_with_the_size(world: World, path: str, wanted: str) -> None:
    answer = world.http.get(path, headers={"Range": wanted})

    assert (answer.status_code, answer.json()["code"]) == (416, "range_not_satisfiable")
    assert answer.headers["content-range"] == f"bytes */{SIZE}"


@pytest.mark.parametrize("wanted", ["bytes=5-4", "bytes=-", "bytes=0-1,5-6", "lines=0-5", "bytes=a-b", "0-5", ""])
def test_what_cannot_be_understood_gets_the_whole(world: World, path: str, wanted: str) -> None:
    answer = world.http.get(path, headers={"Range": wanted})

    assert (answer.status_code, answer.content) == (200, CONTENT)


@pytest.mark.parametrize(
    ("if_range", "status"),
    [
        (ETAG, 206),
        (f"W/{ETAG}", 200),
        ('"another"', 200),
        (ETAG.strip('"'), 200),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 200),
    ],
)
def test_a_part_of_another_file_than_the_client_has_is_not_sent(
    world: World, path: str, if_range: str, status: int
) -> None:
    answer = world.http.get(path, headers={"Range": "bytes=100-", "If-Range": if_range})

    assert (answer.status_code, answer.content) == (status, CONTENT[100:] if status == 206 else CONTENT)


def test_whoever_has_the_file_gets_no_part_of_it(world: World, path: str) -> None:
    answer = world.http.get(path, headers={"Range": "bytes=100-", "If-None-Match": ETAG})

    assert (answer.status_code, answer.content) == (304, b"")


def test_a_log_that_has_grown_is_another_file(world: World, tmp_path: Path) -> None:
    trainer = world.claim(world.create()["id"]).start()
    path = f"/v1/runs/{trainer.run_id}/attempts/1/logs/trainer.log/file"
    trainer.write_log("trainer.log", b"one\n", tmp_path)
    before = world.http.get(path)

    trainer.write_log("trainer.log", b"one\ntwo\n", tmp_path)
    rest = world.http.get(path, headers={"Range": "bytes=4-", "If-Range": before.headers["etag"]})

    assert (rest.status_code, rest.content) == (200, b"one\ntwo\n")
    assert world.http.get(path, headers={"Range": "bytes=4-"}).content == b"two\n"
    assert world.http.get(path.replace("trainer.log", "other.log")).json()["code"] == "log_not_found"


@given(size=st.integers(0, 50), first=st.integers(0, 60), last=st.integers(0, 60))
def test_a_range_means_what_slicing_means(size: int, first: int, last: int) -> None:
    content = bytes(range(size))

    def part(text: str) -> bytes | None:
        try:
            wanted = part_of(text, size)
        except RangeNotSatisfiable:
            return b""
        return None if wanted is None else content[wanted.start : wanted.stop]

    assert part(f"bytes={first}-{last}") == (content[first : last + 1] if first <= last else None)
    assert part(f"bytes={first}-") == content[first:]
    assert part(f"bytes=-{last}") == (content[-last:] if last else b"")
