"""Pages stay quick and calm: many metrics, many runs, a hidden tab, a server that is started again."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import insert

from server.metrics.points import MetricPoint
from server.runs.models import Run
from tests.server.app.world import World, open_world, server_process
from tests.waiting import eventually
from tests.web.conftest import Watched
from tests.web.data import train

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("limits")]

METRICS = 500
RUNS = 10_000
HIDE = """
    let seen = "visible";
    Object.defineProperty(document, "visibilityState", { get: () => seen });
    window.look = (state) => { seen = state; document.dispatchEvent(new Event("visibilitychange")); };
"""
"""A browser without a window never hides a tab: say to the page that it did."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("large")) as world:
        trainer = train(world, tmp_path_factory.mktemp("scratch"))
        trainer.ledger.metrics.append(
            [
                MetricPoint("CartPole", f"Game/Number {key:03d}", step, 1e9 + step, float(key * step))
                for key in range(METRICS)
                for step in (100, 200, 300)
            ]
        )
        with world.services.database.write() as session:
            common = {"kind": "train", "state": "SUCCEEDED", "config": {}, "seed": 0, "tags": []}
            common |= {"stored_updated_at": 1e9}
            names = [f"many-{number:05d}" for number in range(RUNS)]
            rows = [{**common, "id": name, "name": name, "created_at": 1e9 + i} for i, name in enumerate(names)]
            session.execute(insert(Run), rows)
        yield world


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.add_init_script(HIDE)
    yield context.new_page()
    context.close()


def test_of_five_hundred_charts_fewer_than_forty_are_drawn_at_any_time(large: World, page: Page) -> None:
    page.goto(f"{large.server}/ui/runs/walker/charts")
    page.locator("canvas").first.wait_for()
    assert page.locator("figure.chart").count() > METRICS

    most = 0
    for _ in range(12):
        page.mouse.wheel(0, 6000)
        page.locator("figure.chart canvas").nth(3).wait_for()
        most = max(most, page.locator("canvas").count())

    assert 3 < most < 40


def test_of_ten_thousand_runs_a_page_has_at_most_two_hundred_rows(large: World, page: Page) -> None:
    page.goto(f"{large.server}/ui/runs")
    page.get_by_role("link", name="walker").wait_for()
    for _ in range(3):
        first = page.locator("tbody tr td.name").first.inner_text()
        page.get_by_role("button", name="Next page →").click()
        expect(page.locator("tbody tr td.name").first).not_to_have_text(first)

        assert 50 < page.locator("tbody tr").count() <= 200
    page.get_by_role("button", name="← Newer page").click()
    expect(page.get_by_role("button", name="Next page →")).to_be_visible()


def test_a_hidden_page_asks_for_nothing_and_a_visible_one_again_at_once(large: World, page: Page) -> None:
    page.clock.install()
    page.goto(f"{large.server}/ui/runs/walker")
    page.locator("canvas").first.wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.evaluate("look('hidden')")
    expect(page.locator(".freshness")).to_have_text("paused")
    asked.clear()
    page.clock.run_for(60_000)
    assert asked == []

    with page.expect_request("**/v1/**"):
        page.evaluate("look('visible')")
        page.clock.run_for(1000)
    expect(page.locator(".freshness")).to_have_text("live")


def test_a_page_outlives_a_restart_of_its_server_without_an_event_twice(browser: Browser, tmp_path: Path) -> None:
    with server_process(tmp_path) as process:
        with httpx2.Client(base_url=process.server, timeout=60) as http:
            eventually(lambda: http.get("/healthz").status_code == 200, "the server answers")
            config = {"behaviors": {"CartPole": {"trainer_type": "ppo"}}}
            run = http.post("/v1/runs", json={"config": config, "name": "restarted"}).json()["id"]
        watched = Watched(browser.new_page(), process.server)
        page = watched.page
        page.goto(f"{process.server}/ui/runs/{run}/timeline")
        page.locator(".timeline li").first.wait_for()
        page.evaluate("window.opened = 'once'")

        process.end()
        expect(page.locator(".freshness")).to_contain_text("disconnected since")
        process.start()
        expect(page.locator(".freshness")).to_have_text("live", timeout=60_000)
        with httpx2.Client(base_url=process.server, timeout=60) as http:
            for tag in ("one", "two"):
                http.patch(f"/v1/runs/{run}", json={"add_tags": [tag]}).raise_for_status()
            events = http.get(f"/v1/runs/{run}/events").json()["events"]
        expect(page.locator(".timeline li")).to_have_count(len(events))

        assert page.evaluate("window.opened") == "once", "the page was loaded again"
        page.close()
