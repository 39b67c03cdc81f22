"""What can be done with a run from its pages: it happens, the timeline says who did it, and scopes are obeyed."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.app.world import CARTPOLE, Trainer, World, open_world
from tests.server.runs.test_environment_parameters import CONFIG as LESSONS
from tests.web.conftest import TOKEN, Watched, made, sign_in
from tests.web.data import judge, train

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("actions")]

ME = "configured token"
"""How the server calls who has the token of its settings."""
ACTIONS = re.compile("^(Pause|Resume|Checkpoint now|Set …|Stop …|Cancel …|Branch …|Share …|Delete …)$")


@pytest.fixture(scope="module")
def owned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("owned"), token=TOKEN) as world:
        yield world


@pytest.fixture
def page(browser: Browser, owned: World) -> Iterator[Page]:
    """Sign in as the owner."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    watched = Watched(context.new_page(), owned.server)
    sign_in(watched.page, owned)
    expect(watched.page.get_by_role("heading", name="Now")).to_be_visible()
    watched.troubles.clear()  # before signing in, the server refuses to say who one is
    yield watched.page
    context.close()
    assert [each for each in watched.troubles if not re.search("status of (409|422)", each)] == []


def open_run(page: Page, world: World, run: str, part: str = "") -> None:
    page.goto(f"{world.server}/ui/runs/{run}{part}")
    page.locator(".head .state").wait_for()


def running(world: World, name: str, config: Any = CARTPOLE) -> Trainer:
    return world.claim(world.create(config, name=name)["id"]).start()


def timeline(page: Page) -> Any:
    page.get_by_role("link", name="Timeline", exact=True).click()
    return page.locator("ol.timeline")


def run_of(world: World, name: str) -> dict[str, Any]:
    return dict(world.http.get(f"/v1/runs/{name}").json())


def test_a_run_is_cancelled_only_after_a_question_and_the_timeline_says_by_whom(owned: World, page: Page) -> None:
    running(owned, "doomed")
    open_run(page, owned, "doomed")

    page.get_by_role("button", name="Cancel …").click()
    expect(page.get_by_role("dialog")).to_contain_text("What it has learned since its newest checkpoint is lost")
    page.get_by_role("button", name="Leave it").click()
    assert run_of(owned, "doomed")["intent"] is None
    page.get_by_role("button", name="Cancel …").click()
    page.get_by_role("button", name="Cancel it").click()

    expect(page.get_by_role("alert")).to_contain_text("It is cancelled")
    assert run_of(owned, "doomed")["intent"] == "cancel"
    expect(timeline(page)).to_contain_text(f"cancel requested by {ME}")


def test_a_checkpoint_now_is_requested_and_the_timeline_says_by_whom(owned: World, page: Page) -> None:
    running(owned, "saving")
    open_run(page, owned, "saving")

    page.get_by_role("button", name="Checkpoint now").click()

    expect(page.get_by_role("alert")).to_contain_text("A checkpoint is being saved")
    expect(timeline(page)).to_contain_text(ME)


def test_hyperparameters_are_set_and_a_wrong_one_is_refused_in_the_dialog(owned: World, page: Page) -> None:
    running(owned, "tuned")
    open_run(page, owned, "tuned")

    page.get_by_role("button", name="Set …").click()
    expect(page.get_by_role("button", name="Set them")).to_be_disabled()
    page.get_by_label("learning_rate", exact=True).fill("-1")
    page.get_by_role("button", name="Set them").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("learning_rate")
    page.get_by_label("learning_rate", exact=True).fill("0.002")
    page.get_by_label("max_steps", exact=True).fill("20000")
    page.get_by_role("button", name="Set them").click()

    expect(page.get_by_role("dialog")).to_have_count(0)
    section = run_of(owned, "tuned")["config"]["behaviors"]["CartPole"]
    assert (section["hyperparameters"]["learning_rate"], section["max_steps"]) == (0.002, 20000)
    page.get_by_role("link", name="Config", exact=True).click()
    expect(page.locator("main")).to_contain_text("behaviors.CartPole.max_steps")
    expect(timeline(page)).to_contain_text(ME)


def test_a_lesson_is_set_and_the_page_says_that_the_trainer_has_not_done_it_yet(owned: World, page: Page) -> None:
    trainer = running(owned, "taught", LESSONS)
    open_run(page, owned, "taught", "/lessons")

    page.get_by_role("spinbutton", name="lesson").fill("2")
    page.get_by_role("button", name="Set it").click()

    expect(page.locator(".note")).to_contain_text("wall was asked to change")
    assert trainer.ledger.parameters.edits(0) == [(1, "wall", {"lesson": 2})]


def test_a_branch_begins_with_the_configuration_of_the_run(owned: World, page: Page) -> None:
    running(owned, "origin", {**CARTPOLE, "seed": 77})
    open_run(page, owned, "origin")

    page.get_by_role("button", name="Branch …").click()
    editor = page.get_by_label("Configuration (YAML)")
    expect(editor).to_have_value(re.compile("seed: 77"))
    editor.fill(editor.input_value().replace("seed: 77", "seed: 78"))
    page.get_by_label("Name").fill("offspring")
    page.get_by_role("button", name="Start the run").click()

    expect(page.get_by_role("heading", name="offspring")).to_be_visible()
    origin, branch = (run_of(owned, name)["config"] for name in ("origin", "offspring"))
    assert branch == {**origin, "seed": 78}


def test_a_new_run_begins_with_an_earlier_one_and_asks_before_it_replaces_what_was_typed(
    owned: World, page: Page
) -> None:
    running(owned, "forerunner", {**CARTPOLE, "seed": 91})
    page.goto(f"{owned.server}/ui/new")
    editor = page.get_by_label("Configuration (YAML)")
    editor.fill("behaviors: {}")
    earlier = page.locator("optgroup[label='Earlier runs'] option").filter(has_text="forerunner")

    page.get_by_label("Begin with").select_option(value=earlier.get_attribute("value"))
    expect(page.get_by_role("dialog")).to_contain_text("What you typed is lost.")
    page.get_by_role("button", name="Leave it").click()
    expect(editor).to_have_value("behaviors: {}")
    page.get_by_label("Begin with").select_option(value="")
    page.get_by_label("Begin with").select_option(value=earlier.get_attribute("value"))
    page.get_by_role("button", name="Replace it").click()

    expect(editor).to_have_value(re.compile("seed: 91"))


def test_a_run_of_a_stored_configuration_keeps_where_it_came_from_unless_it_was_edited(
    owned: World, page: Page
) -> None:
    owned.http.post("/v1/configs/house/versions", json={"config": {**CARTPOLE, "seed": 6}}).raise_for_status()
    origins = []
    for name, edit in (("unchanged", ""), ("edited", "\n")):
        page.goto(f"{owned.server}/ui/new")
        page.get_by_label("Begin with").select_option(label="house")
        editor = page.get_by_label("Configuration (YAML)")
        expect(editor).to_have_value(re.compile("seed"))
        editor.fill(editor.input_value() + edit)
        page.get_by_label("Name").fill(name)
        page.get_by_role("button", name="Start the run").click()
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        run = run_of(owned, name)
        origins.append((run["config_name"], run["config_version"], run["config"]["seed"]))

    assert origins == [("house", 1, 6), (None, None, 6)]


def test_a_checkpoint_is_pinned_and_gets_an_alias_that_models_shows(owned: World, page: Page, tmp_path: Path) -> None:
    train(owned, tmp_path / "run", "kept")
    open_run(page, owned, "kept", "/models")

    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.get_by_role("button", name="Unpin")).to_be_visible()
    page.get_by_role("button", name="Alias …").click()
    page.get_by_label("Alias", exact=True).fill("shipped")
    expect(page.get_by_role("dialog")).to_contain_text("There is no such alias yet")
    page.get_by_role("button", name="Set it").click()
    expect(page.get_by_role("alert")).to_contain_text("shipped stands for")

    page.get_by_role("link", name="Models", exact=True).first.click()
    alias = page.locator("section.card tr").filter(has_text="shipped")
    expect(alias).to_contain_text("kept, step 3 k")
    with page.expect_download() as model:
        alias.get_by_role("link", name="CartPole.onnx").click()
    assert model.value.path().read_bytes() == b"no real model"
    checkpoint = owned.http.get("/v1/runs/kept/checkpoints/latest").json()
    assert owned.http.get("/v1/aliases/shipped").json()["checkpoint_id"] == checkpoint["id"]
    assert checkpoint["pinned_at"] is not None


def test_the_winner_of_a_gate_is_promoted_and_the_alias_moves(owned: World, page: Page, tmp_path: Path) -> None:
    for name in ("old", "new"):
        train(owned, tmp_path / name, name)
    old, new = (owned.http.get(f"/v1/runs/{name}/checkpoints/latest").json()["id"] for name in ("old", "new"))
    owned.http.put("/v1/aliases/champion", json={"checkpoint_id": old}).raise_for_status()
    gate = judge(owned, new, old)
    open_run(page, owned, gate)

    candidate = page.locator("section.card").filter(has=page.get_by_role("heading", name="Candidate"))
    expect(candidate.get_by_role("link", name="run_")).to_have_attribute("href", re.compile(run_of(owned, "new")["id"]))
    expect(candidate.get_by_role("link", name="CartPole.onnx")).to_have_attribute("download", "CartPole.onnx")
    page.get_by_role("button", name="Promote …").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"It stands for {old} now, and for {new} afterwards")
    page.get_by_role("button", name="Set it").click()

    expect(page.get_by_role("alert")).to_contain_text("champion stands for")
    history = owned.http.get("/v1/aliases/champion/history").json()["moves"]
    assert (history[0]["checkpoint_id"], history[0]["moved_by"]) == (new, ME)


def test_a_run_that_has_ended_is_deleted_after_a_question(owned: World, page: Page) -> None:
    running(owned, "typo").finish()
    open_run(page, owned, "typo")

    page.get_by_role("button", name="Delete …").click()
    expect(page.get_by_role("dialog")).to_contain_text("This cannot be undone")
    page.get_by_role("button", name="Delete it").click()

    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    assert owned.http.get("/v1/runs/typo").status_code == 404


def test_a_refused_action_says_why_in_its_dialog_and_the_run_stays(owned: World, page: Page, tmp_path: Path) -> None:
    trainer = train(owned, tmp_path / "run", "needed")
    checkpoint = owned.http.get("/v1/runs/needed/checkpoints/latest").json()["id"]
    owned.http.put("/v1/aliases/needed", json={"checkpoint_id": checkpoint}).raise_for_status()
    trainer.finish()
    open_run(page, owned, "needed")

    page.get_by_role("button", name="Delete …").click()
    with page.expect_response(lambda answer: answer.request.method == "DELETE") as answer:
        page.get_by_role("button", name="Delete it").click()

    assert answer.value.status == 409
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("needed")
    assert run_of(owned, "needed")["state"] == "SUCCEEDED"


@pytest.mark.parametrize(("scope", "shown"), [("read", 0), ("run", 6)])
def test_without_its_scope_a_button_is_not_there(
    owned: World, browser: Browser, tmp_path: Path, scope: str, shown: int
) -> None:
    train(owned, tmp_path / "run", f"watched-{scope}")
    page = browser.new_page()
    sign_in(page, owned, made(owned, name=f"for-{scope}", scopes=[scope])["token"])
    expect(page.get_by_role("heading", name="Now")).to_be_visible()

    open_run(page, owned, f"watched-{scope}")
    expect(page.get_by_role("button", name=ACTIONS)).to_have_count(shown)
    assert page.get_by_role("link", name="New run").count() == (scope == "run")
    assert page.get_by_role("link", name="Admin").count() == 0
    open_run(page, owned, f"watched-{scope}", "/models")
    page.get_by_role("link", name="CartPole.onnx").wait_for()
    assert (page.get_by_role("button", name="Pin").count() > 0) == (scope == "run")
    page.context.close()


def test_the_configuration_of_a_run_is_compared_with_the_stored_one_that_it_came_from(owned: World, page: Page) -> None:
    owned.http.post("/v1/configs/base/versions", json={"config": {**CARTPOLE, "seed": 5}}).raise_for_status()
    for name, overrides in (("as-stored", {}), ("overridden", {"behaviors.CartPole.max_steps": 77})):
        body = {"config_name": "base", "name": name, "overrides": overrides}
        owned.http.post("/v1/runs", json=body).raise_for_status()

    open_run(page, owned, "as-stored", "/config")
    expect(page.locator("main")).to_contain_text("Against base version 1")
    expect(page.locator("main")).to_contain_text("The run was created with the stored configuration as it is.")
    open_run(page, owned, "overridden", "/config")
    rows = page.locator("section.card").first.locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("behaviors.CartPole.max_steps1000077")
