"""The pages of experiments: what was tried, what matters, how the best ones learned, and what can be done."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.app.world import open_world
from tests.server.lifecycle.experiments.fleet import EPOCHS, LR
from tests.server.lifecycle.experiments.played import Played, begin, body
from tests.web.conftest import Watched, serious

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("experiments")]

SPACE = {LR: {"min": 1e-5, "max": 1e-1, "scale": "log"}, EPOCHS: {"values": [2, 4, 8]}}
TRIALS = 16


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """An experiment that has ended: sixteen settings, three seeds of each; what counts is the learning rate."""
    with open_world(tmp_path_factory.mktemp("played")) as world:
        request = body("rates", parameters=SPACE, seeds=3, budget={"runs": 3 * TRIALS}, parallelism=8, sampler="random")
        experiment = begin(world, {**request, "description": "Which rate?"})
        experiment.play()
        yield experiment


@pytest.fixture(params=[("light", 1440), ("dark", 390)], ids=["light and wide", "dark and narrow"])
def look(browser: Browser, played: Played, request: pytest.FixtureRequest) -> Iterator[Watched]:
    theme, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    watched = Watched(context.new_page(), played.world.server)
    yield watched
    context.close()
    assert watched.troubles == []


@pytest.fixture
def page(browser: Browser, played: Played) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    watched = Watched(context.new_page(), played.world.server)
    yield watched.page
    context.close()
    assert watched.troubles == []


@pytest.mark.parametrize("path", ["ui/experiments", "ui/experiments/rates"])
def test_pages_of_experiments_are_usable_by_everybody_and_fit_their_width(look: Watched, path: str) -> None:
    page = look.open(path)
    expect(page.locator("main")).to_contain_text("Which rate?")

    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_an_experiment_shows_its_best_setting_what_matters_and_every_trial(played: Played, page: Page) -> None:
    best = played.get()["best"]
    page.goto(f"{played.world.server}/ui/experiments")
    page.get_by_role("link", name="rates").click()
    expect(page.get_by_role("heading", name="rates", exact=True)).to_be_visible()

    expect(page.locator("dl.facts")).to_contain_text(f"trial {best['number']}")
    expect(page.locator("svg.coordinates path")).to_have_count(TRIALS)
    names = page.locator("svg.coordinates .name")
    expect(names).to_have_text(["learning_rate", "num_epoch", "value"])
    matters = page.locator("section", has_text="What matters").locator(".row")
    expect(matters).to_have_count(2)
    expect(matters.first).to_contain_text("learning_rate")
    rows = page.locator("table tbody tr")
    expect(rows).to_have_count(TRIALS)
    assert rows.first.locator("td").first.inner_text().strip() == str(best["number"]), "the best one is the first"
    page.get_by_label("in the order in which they began").check()
    assert rows.first.locator("td").first.inner_text().strip() == "0"


def test_the_best_trials_are_curves_with_bands_and_lead_to_their_runs(played: Played, page: Page) -> None:
    page.goto(f"{played.world.server}/ui/experiments/rates")
    expect(page.locator(".chart canvas")).to_have_count(1)
    expect(page.locator(".chart")).to_contain_text(f"trial {played.get()['best']['number']} (n = 3)")

    page.locator("table tbody tr").first.get_by_role("link", name="3").click()

    expect(page.get_by_role("heading", name="Compare 3 runs")).to_be_visible()


def test_an_experiment_is_paused_resumed_and_stopped_from_its_page(played: Played, page: Page) -> None:
    begin(played.world, body("long", budget={"runs": 400}))
    page.goto(f"{played.world.server}/ui/experiments/long")

    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".head .state")).to_contain_text("PAUSED")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".head .state")).to_contain_text("RUNNING")
    page.get_by_role("button", name="Stop …").click()
    page.get_by_role("button", name="Stop it").click()
    expect(page.locator(".head .state")).to_contain_text("FINISHED")
    expect(page.locator("main")).to_contain_text("Stopped by a user.")


def test_stopped_trials_are_tried_again_from_the_page_of_their_experiment(played: Played, page: Page) -> None:
    stopped = begin(played.world, body("unfinished", budget={"runs": 1}))
    stopped.turn()
    played.world.http.post("/v1/experiments/unfinished:stop").raise_for_status()
    page.goto(f"{played.world.server}/ui/experiments/unfinished")
    expect(page.locator("main")).to_contain_text("1 trial was stopped before its end")

    page.get_by_role("button", name="Retry stopped trials").click()

    expect(page.locator(".head .state")).to_contain_text("RUNNING")
    expect(page.get_by_role("button", name="Retry stopped trials")).to_have_count(0)


def test_an_experiment_of_which_nothing_has_a_value_says_so(played: Played, page: Page) -> None:
    early = begin(played.world, body("early", parallelism=1))
    early.turn()
    page.goto(f"{played.world.server}/ui/experiments/early")

    expect(page.locator("main")).to_contain_text("No trial has a value yet.")
    expect(page.locator("main")).to_contain_text("A few more complete trials tell which keys matter.")
