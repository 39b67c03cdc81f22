"""Stories of a designer at the pages: which file to take, what learned nothing, what ended, and tidying up."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from ludus.schemas import Finding
from server.kit.jobs import JobLoop
from server.metrics.jobs import packing_job
from tests.server.app.world import CARTPOLE, Trainer, World, open_world
from tests.server.runs.test_environment_parameters import CONFIG as LESSONS
from tests.web.conftest import Watched
from tests.web.data import REWARD

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("designer")]

FINDING = Finding(
    code="returns_constant",
    behavior="CartPole",
    message="All 654 episodes had a return of exactly 0.",
    remedy="Let the game give a reward.",
    since_step=1000,
    since=datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("designer")) as world:
        yield world


def trained(world: World, name: str, rewards: list[float]) -> Trainer:
    trainer = world.claim(world.create(name=name)["id"]).start()
    trainer.measure(REWARD, rewards)
    return trainer


def test_the_overview_offers_the_best_file_and_says_of_what_its_score_is(
    world: World, watched: Watched, tmp_path: Path
) -> None:
    trainer = trained(world, "jumper", [1.0, 6.6, 2.0])
    trainer.save(200, {"CartPole.onnx": b"the best"}, tmp_path, score=6.6)
    trainer.save(300, {"CartPole.onnx": b"worse"}, tmp_path, score=2.0)
    trainer.finish()
    page = watched.open("ui/runs/jumper")

    card = page.locator("section.card", has_text="Take this one")
    expect(card).to_contain_text("6.6 mean return of the last 20 episodes, since step 100")
    expect(card).to_contain_text("The newest one, of step 300, has a score of 2.")
    with page.expect_download() as model:
        card.get_by_role("link", name="Download CartPole.onnx").click()
    assert model.value.path().read_bytes() == b"the best"
    page.get_by_role("link", name="Models", exact=True).last.click()
    expect(page.locator("tbody tr", has_text="best")).to_contain_text("6.6")
    assert page.locator("tbody tr", has_text="best").count() == 1


def test_models_lists_every_run_with_a_checkpoint_by_pages_and_by_name(
    world: World, watched: Watched, tmp_path: Path
) -> None:
    for number in range(22):
        trainer = trained(world, f"kept-{number:02d}", [1.0])
        (tmp_path / str(number)).mkdir()
        trainer.save(100, {"CartPole.onnx": b"x"}, tmp_path / str(number))
        trainer.finish()
    for number in range(25):
        world.create(name=f"newer-{number}")
    page = watched.open("ui/models")

    rows = page.locator("table.cards tbody tr")
    expect(rows).to_have_count(20)
    page.get_by_role("button", name="Earlier").click()
    expect(rows.filter(has_text="kept-00")).to_have_count(1)
    page.get_by_label("Run's name begins with").fill("kept-1")
    page.get_by_label("Run's name begins with").press("Enter")
    expect(rows).to_have_count(10)
    expect(page.locator("main")).not_to_contain_text("newer-")


def test_a_run_that_learned_nothing_says_so_everywhere_with_its_remedy(world: World, watched: Watched) -> None:
    trainer = trained(world, "useless", [0.0, 0.0])
    trainer.ledger.health.publish([FINDING])
    page = watched.open("ui/runs/useless")
    expect(page.locator(".note")).to_contain_text("All 654 episodes had a return of exactly 0.")
    expect(page.locator(".note")).to_contain_text("Let the game give a reward.")
    watched.open()
    needs = page.locator("section.card", has_text="Needs you").locator("tr", has_text="useless")
    expect(needs).to_contain_text("Let the game give a reward.")

    trainer.finish()

    expect(page.locator("section.card", has_text="Ended in").locator("tr", has_text="useless")).to_contain_text(
        "ended, with warnings", timeout=60_000
    )
    for path in ("ui/runs?q=useless", "ui/runs/useless", "ui/compare?runs=useless"):
        watched.open(path)
        expect(page.locator('.state[data-tone="warn"]').first).to_have_text("▲ended, with warnings")


def test_sixteen_runs_that_wait_for_the_same_are_one_line(world: World, watched: Watched) -> None:
    for number in range(16):
        world.create(name=f"waiting-{number}")

    page = watched.open()

    card = page.locator("section.card", has_text="Waiting for a worker")
    expect(card.locator("tr")).to_have_count(1)
    expect(card).to_contain_text(re.compile(r"and \d\d more"))


def test_the_heads_of_runs_order_them_and_none_is_hidden_by_an_order(world: World, watched: Watched) -> None:
    for name, reward in {"ordered-a": 1.0, "ordered-b": 3.0, "ordered-c": 2.0}.items():
        trained(world, name, [reward]).finish()
    JobLoop([packing_job(world.services.database)], 0.0).tick()
    world.create(name="ordered-none")
    page = watched.open("ui/runs?q=ordered")
    names = page.locator("td.name > a")

    page.get_by_role("button", name="Reward", exact=True).click()
    expect(page.get_by_role("columnheader", name="Reward ▾")).to_have_attribute("aria-sort", "descending")
    expect(names).to_have_text(["ordered-b", "ordered-c", "ordered-a", "ordered-none"])
    page.get_by_role("button", name="Reward ▾").click()
    expect(names).to_have_text(["ordered-a", "ordered-c", "ordered-b", "ordered-none"])
    page.get_by_role("button", name="name", exact=True).click()
    expect(names).to_have_text(["ordered-a", "ordered-b", "ordered-c", "ordered-none"])


def test_a_selection_is_tagged_cancelled_and_deleted_at_once(world: World, watched: Watched) -> None:
    for number in range(5):
        world.create(name=f"tidy-{number}")
    page = watched.open("ui/runs?q=tidy-")

    page.get_by_label("Select all of this page").check()
    page.get_by_role("button", name="Tag …").click()
    page.get_by_label("add").fill("old, unused")
    page.get_by_role("button", name="Change the tags").click()
    page.get_by_role("dialog").wait_for(state="detached")
    expect(page.locator("tbody .tag", has_text="unused")).to_have_count(5)
    for verb in ("Cancel", "Delete"):
        page.get_by_label("Select all of this page").check()
        page.get_by_role("button", name=f"{verb} …").click()
        page.get_by_role("button", name=f"{verb} 5 runs").click()
        page.get_by_role("dialog").wait_for(state="detached")
        expect(page.get_by_role("alert")).to_contain_text("Done for 5 of 5 runs")

    expect(page.locator("main")).to_contain_text("No run fits this filter.")


def test_a_new_run_keeps_its_text_over_reload_and_back_and_says_what_a_name_may_be(
    world: World, watched: Watched
) -> None:
    page = watched.open("ui/new")
    text = page.get_by_label("Configuration (YAML)")
    text.fill("behaviors: {CartPole: {trainer_type: ppo, max_steps: 1000}}")
    page.get_by_label("Name").fill("My boss fight v2")
    expect(page.get_by_role("button", name="Start the run")).to_be_disabled()
    expect(page.locator("#name-rule b")).to_contain_text("no spaces")
    page.get_by_role("button", name="Call it My-boss-fight-v2").click()

    page.reload()
    expect(text).to_have_value(re.compile("max_steps: 1000"))
    page.get_by_role("link", name="Fleet").click()
    page.go_back()

    expect(text).to_have_value(re.compile("max_steps: 1000"))
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("heading", name="My-boss-fight-v2")).to_be_visible()
    page.goto(f"{world.server}/ui/new")
    expect(text).to_have_value("")


def test_the_overview_of_a_run_without_a_game_has_the_command_that_joins_it(world: World, watched: Watched) -> None:
    world.create(name="lonely")
    page = watched.open("ui/runs/lonely")

    expect(page.locator("main")).to_contain_text("ludus simulate python:game.py --run lonely --behavior CartPole")
    assert page.locator(".chart").count() == 0
    trained(world, "visited", [1.0])
    watched.open("ui/runs/visited")
    page.locator(".chart").first.wait_for()
    expect(page.locator("main")).not_to_contain_text("How a game joins")


def test_lessons_that_are_passed_keep_their_names(world: World, watched: Watched) -> None:
    world.claim(world.create(LESSONS, name="schooled")["id"]).start()
    page = watched.open("ui/runs/schooled/lessons")

    expect(page.get_by_role("list", name="Lessons").first).to_contain_text(re.compile("1 Low.*2 High", re.DOTALL))


def test_escape_closes_the_dialog_of_a_link_that_is_made_and_the_link_opens_the_run_alone(
    world: World, watched: Watched, browser: Browser
) -> None:
    run = world.create(CARTPOLE, name="shared")["id"]
    world.create(CARTPOLE, name="private")
    page = watched.open("ui/runs/shared")
    page.get_by_role("button", name="Share …").click()
    page.get_by_role("button", name="Make the link").click()
    link = page.get_by_label("Link", exact=True).input_value()
    expect(page.get_by_role("dialog")).to_contain_text("127.0.0.1 is every machine itself")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)

    colleague: Page = browser.new_context().new_page()
    colleague.goto(link)

    expect(colleague.get_by_role("heading", name="shared")).to_be_visible()
    assert colleague.url == f"{world.server}/ui/runs/{run}"
    assert colleague.get_by_role("link", name="Admin").count() == 0
    colleague.goto(f"{world.server}/ui/runs/private")
    expect(colleague.locator("main")).not_to_contain_text("CartPole")
    colleague.context.close()


def test_runs_are_cards_on_a_phone_within_its_width(world: World, browser: Browser) -> None:
    for number in range(10):
        world.create(name=f"card-{number}")
    page = browser.new_context(viewport={"width": 390, "height": 844}).new_page()
    page.goto(f"{world.server}/ui/runs?q=card-")
    expect(page.locator("table.cards tbody tr")).to_have_count(10)

    heights = [row.bounding_box() for row in page.locator("table.cards tbody tr").all()]

    assert all(box is not None and box["height"] < 200 and box["width"] <= 390 for box in heights), heights
    expect(page.locator("table.cards tbody tr").first).to_contain_text("QUEUED")
    page.context.close()


def test_the_current_tab_of_a_run_is_within_the_width_of_a_phone(world: World, browser: Browser) -> None:
    world.create(name="tabbed")
    page = browser.new_context(viewport={"width": 390, "height": 844}).new_page()
    page.goto(f"{world.server}/ui/runs/tabbed/simulators")
    tab = page.locator(".tabs a", has_text="Simulators")
    expect(tab).to_have_attribute("aria-current", "page")

    box = tab.bounding_box()

    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    page.context.close()


def test_a_vertical_axis_has_room_for_large_numbers(world: World, watched: Watched) -> None:
    trained(world, "large", [-2.5e11, -1.5e11, 1e11]).finish()
    page = watched.open("ui/runs/large")
    canvas = page.locator(".chart canvas").first
    expect(canvas).to_be_visible()

    inked = canvas.evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, 3, canvas.height).data.some(value => value > 0)"
    )

    assert not inked, "a number is cut at the left edge"


def test_runs_that_were_stopped_are_listed_alone(world: World, watched: Watched) -> None:
    trained(world, "halted-early", [1.0]).finish(reason="user")
    trained(world, "halted-never", [1.0]).finish()
    page = watched.open("ui/runs?q=halted")
    expect(page.locator("td.name > a")).to_have_count(2)

    page.get_by_label("State").select_option("STOPPED")

    expect(page.locator("td.name > a")).to_have_text(["halted-early"])
    expect(page.locator(".state").first).to_have_text("◼STOPPED")
