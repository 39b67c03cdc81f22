"""One API for all tests of demonstrations, with small limits."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.server.app.world import World, build_services, serving

FILE_BYTES = 100_000
DECODED_BYTES = 1_000_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    storage = {"demonstration_bytes": FILE_BYTES, "demonstration_decoded_bytes": DECODED_BYTES}
    folder = tmp_path_factory.mktemp("demonstrations")
    services = build_services(folder, storage={"root": folder / "artifacts", **storage})
    with serving(services) as server, httpx2.Client(base_url=server, timeout=30) as http:
        yield World(services, server, http)
