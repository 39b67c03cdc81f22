"""A game in a page trains on the embedded stack while it is watched, and goes on when its collector dies."""

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Browser, Page, expect

from ludus.client import Client
from tests.e2e import conftest
from tests.e2e.stack import LudusUp
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
GAME = ROOT / "examples" / "browser"
SECONDS = 60.0
BAR = 60
"""Percent of the stars that are caught at last; chance catches one of seven."""

stack, client = conftest.stack, conftest.client

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.long]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def pages() -> Iterator[str]:
    """Serve the repository, as `python -m http.server` does."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=ROOT))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def number(page: Page, name: str) -> int:
    text = page.locator(f"#{name}").inner_text().removesuffix(" %")
    return int(text) if text.isdigit() else 0


def test_a_game_in_a_page_learns_and_outlives_its_collector(
    stack: LudusUp, client: Client, browser: Browser, pages: str
) -> None:
    run = client.runs.create(yaml.safe_load((GAME / "stars.yaml").read_text()), name="stars")
    context = browser.new_context()
    page: Page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))

    page.goto(f"{pages}/examples/browser/?run={run.id}&server={stack.websocket}")
    eventually(lambda: number(page, "caught") >= BAR, "the page catches most of its stars", SECONDS)
    (simulator,) = client.simulators.list(run.id)
    assert simulator.client.startswith("ludus-js/")
    assert not simulator.relayed

    before = number(page, "down")
    (collector,) = stack.processes("worker.collectors")
    collector.kill()
    eventually(lambda: number(page, "down") > before + 200, "the page plays on with the next collector", SECONDS)
    assert number(page, "caught") >= BAR

    client.runs.cancel(run.id)
    expect(page.locator("#status")).to_contain_text("run_cancelled")
    assert troubles == []
    context.close()
