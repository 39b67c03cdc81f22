"""Uploads for tests: recordings as bytes, and as the API tells of them."""

from pathlib import Path
from typing import Any

import httpx2

from ludus.demonstrations import Demonstration, write
from tests.ludus.demonstrations.shown import make_demonstration
from tests.server.app.world import World

HEADERS = {"Content-Type": "application/octet-stream"}


def recorded(folder: Path, demonstration: Demonstration | None = None, suffix: str = ".npz") -> bytes:
    """Return a file's content."""
    file = folder / f"shown{suffix}"
    write(demonstration or make_demonstration(), file)
    return file.read_bytes()


def send(world: World, content: bytes, **parameters: str) -> httpx2.Response:
    """Upload a file."""
    return world.http.post("/v1/demonstrations", content=content, params=parameters, headers=HEADERS)


def stored(world: World, folder: Path, demonstration: Demonstration | None = None, **parameters: str) -> dict[str, Any]:
    """Upload a demonstration that is good."""
    answer = send(world, recorded(folder, demonstration), **parameters)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def leftovers(world: World) -> list[str]:
    """Name what lies in the artifact store without a row, and uploads that nobody cleared away."""
    root = world.services.settings.storage.root
    listed = world.http.get("/v1/demonstrations", params={"page_size": 1000}).json()["demonstrations"]
    folders = {path.name for path in (root / "demonstrations").glob("*")}
    return [*(folders - {each["id"] for each in listed}), *(path.name for path in (root / ".uploads").glob("*"))]
