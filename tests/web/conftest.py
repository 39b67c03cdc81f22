"""A browser for all tests of a process, and a page for each that fails the test if anything in it does."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.server.app.world import World, open_world
from tests.web.data import show

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TOKEN = "boss"
"""Of servers that demand one."""
SECONDS = 30.0
"""How long a test waits for something on a page."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    expect.set_options(timeout=1000 * SECONDS)
    with sync_playwright() as playwright:
        # Tests run as root in containers, where Chromium's sandbox is not to be had.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("web")) as world:
        yield world


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Serve what a team has on a good day."""
    with open_world(tmp_path_factory.mktemp("shown")) as world:
        show(world, tmp_path_factory.mktemp("scratch"))
        yield world


class Watched:
    """A page, and what went wrong in it."""

    def __init__(self, page: Page, server: str) -> None:
        self.page = page
        self.server = server
        self.requests: list[Request] = []
        self.troubles: list[str] = []
        page.set_default_timeout(1000 * SECONDS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.troubles.append(f"dialog: {dialog.message}"))
        page.on("request", self._asked)

    def open(self, path: str = "") -> Page:
        """Go to a page and return it once it shows something."""
        self.page.goto(f"{self.server}/{path}")
        self.page.locator("main h1, main .note").first.wait_for()
        expect(self.page.locator("main")).not_to_contain_text("Loading …")
        return self.page

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.troubles.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        self.requests.append(request)
        if (
            not request.url.startswith(("data:", "blob:"))
            and urlsplit(request.url).netloc != urlsplit(self.server).netloc
        ):
            self.troubles.append(f"request to somebody else: {request.url}")


@pytest.fixture
def watched(browser: Browser, world: World) -> Iterator[Watched]:
    """Open a page in a fresh profile. The test fails if the page complains, or asks anybody but its server."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    watched = Watched(context.new_page(), world.server)
    yield watched
    watched.page.unroute_all(behavior="ignoreErrors")  # what a test answers itself may be on its way
    context.close()
    assert watched.troubles == []


def sign_in(page: Page, world: World, token: str = TOKEN, path: str = "") -> None:
    """Open a page of a server that demands a token, and sign in."""
    page.goto(f"{world.server}/{path}")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()


def made(world: World, **fields: object) -> dict[str, str]:
    """Make a token."""
    answer = world.http.post("/v1/tokens", json=fields)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()


def serious(page: Page) -> list[str]:
    """Return what axe-core finds serious or critical: the rule, and where."""
    page.evaluate(AXE)  # by the debugger: the page's own policy forbids scripts of others
    found = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{each['id']}: {node['target']} {node['failureSummary']}"
        for each in found
        if each["impact"] in {"serious", "critical"}
        for node in each["nodes"]
    ]
