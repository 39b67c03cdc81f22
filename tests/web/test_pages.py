"""Every page: with no data and with some, in both themes and widths, without a complaint, and usable by everybody."""

from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import text

from server.runs.scheduling.order import Obstacle
from server.runs.scheduling.repository import WaitingRuns
from tests.server.app.world import CARTPOLE, World, open_world
from tests.web.conftest import Watched, serious
from tests.web.data import HOSTILE, fill

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("pages")]

PAGES = ("", "ui/runs", "ui/experiments", "ui/ladders", "ui/models", "ui/fleet", "ui/new", "ui/admin", "ui/login")
PARTS = ("?part=webhooks", "?part=audit", "?part=storage")
TABS = ("", "/charts", "/timeline", "/models", "/simulators", "/recordings", "/logs", "/config")
FILLED = (
    *PAGES,
    *(f"ui/admin{part}" for part in PARTS),
    *(f"ui/runs/walker{tab}" for tab in TABS),
    *(f"ui/runs/nightly-412{tab}" for tab in TABS),
    "ui/runs/striker/opponents",
    "ui/runs/striker/opponents?over=step",
    "ui/ladders/striker",
    "ui/runs/taught/lessons",
    "ui/runs?diff=1",
    "ui/runs/gate",
    "ui/compare?runs=walker,walker-2",
    "ui/compare?runs=walker,walker-2&by=seed&smooth=0.6&log=1&clip=1",
)
LOOKS: list[tuple[Literal["light", "dark"], int]] = [("light", 1440), ("dark", 390)]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("filled")) as world:
        fill(world, tmp_path_factory.mktemp("scratch"))
        yield world


@pytest.fixture(scope="module")
def looks(browser: Browser, filled: World) -> Iterator[list[Watched]]:
    """Open a page of the filled world in each of the looks.

    The tests of a look share it: a process for each and its compilation of all scripts take longer than the tests.
    """
    contexts = [
        browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme) for theme, width in LOOKS
    ]
    yield [Watched(context.new_page(), filled.server) for context in contexts]
    for context in contexts:
        context.close()


@pytest.fixture(params=range(len(LOOKS)), ids=["light and wide", "dark and narrow"])
def look(request: pytest.FixtureRequest, looks: list[Watched]) -> Iterator[Watched]:
    """Return the page of one of the looks."""
    watched = looks[request.param]
    yield watched
    watched.page.goto("about:blank")  # nothing of this test goes on in the next one
    troubles, watched.troubles = watched.troubles, []
    assert troubles == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_without_data_says_what_to_do_next(path: str, watched: Watched) -> None:
    page = watched.open(path)

    assert page.locator("main").inner_text().strip()
    expect(page.locator("main .note[data-tone=bad]")).to_have_count(0)
    assert serious(page) == []


@pytest.mark.parametrize("path", FILLED)
def test_a_page_with_data_fits_its_screen_and_everybody_can_use_it(path: str, look: Watched) -> None:
    page = look.open(path)

    expect(page.locator("main .note[data-tone=bad][role=alert]")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    assert serious(page) == []


DIALOGS = [
    ("ui/runs", "?"),
    ("ui/runs", "Metrics …"),
    ("ui/admin", "New token …"),
    ("ui/runs/walker", "Set …"),
    ("ui/runs/walker", "Stop …"),
    ("ui/runs/walker", "Share …"),
    ("ui/runs/walker/models", "Alias …"),
]


@pytest.mark.parametrize(("path", "button"), DIALOGS, ids=[button.rstrip(" …") for _, button in DIALOGS])
def test_a_dialog_fits_its_screen_and_everybody_can_use_it(path: str, button: str, look: Watched) -> None:
    page = look.open(path)
    page.get_by_role("button", name=button, exact=True).first.click()
    expect(page.get_by_role("dialog")).to_be_visible()

    assert page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth"), "it scrolls sideways"
    assert serious(page) == []


def test_now_shows_a_run_that_no_worker_can_train_under_what_needs_you(filled: World, look: Watched) -> None:
    run = filled.create({**CARTPOLE, "resources": {"gpu": 64}}, name="greedy")["id"]
    with filled.services.database.write() as session:
        WaitingRuns(session).inform(run, Obstacle("no_worker_serves", "No worker has 64 GPUs."))
        session.execute(text("UPDATE events SET at = at - 700 WHERE run_id = :run"), {"run": run})
    page = look.open()

    row = page.locator("section.card").filter(has_text="Needs you").locator("tr").filter(has_text="greedy")
    expect(row).to_contain_text("No worker has 64 GPUs.")
    filled.http.post(f"/v1/runs/{run}:cancel").raise_for_status()


HOSTILE_PLACES = (
    *(f"ui/runs/nightly-412{tab}" for tab in ("", "/timeline", "/simulators", "/recordings", "/logs", "/charts")),
    *("", "ui/runs?state=FAILED", "ui/fleet", "ui/admin?part=webhooks"),
)


@pytest.mark.parametrize("path", HOSTILE_PLACES)
def test_hostile_texts_are_shown_and_not_understood(path: str, look: Watched) -> None:
    page = look.open(path)

    expect(page.locator("body")).to_contain_text("<img src=x onerror=")
    assert page.locator("img, main script, [onerror]").count() == 0
    assert "\u202e" not in page.locator("body").inner_text()
    assert HOSTILE[:20] in page.content().replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def test_pages_ask_for_little_when_they_are_opened_for_the_first_time(browser: Browser, filled: World) -> None:
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    received: list[float] = []
    session.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))

    page.goto(f"{filled.server}/")
    page.locator("main h1").wait_for()
    expect(page.locator("main")).not_to_contain_text("Loading")
    context.close()

    assert 20_000 < sum(received) < 150_000, f"{sum(received):,.0f} bytes"
