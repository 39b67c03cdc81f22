"""Write the pictures of docs/dashboard.md: `make pictures`. Needs Chromium.

The pages are those of a server with the data of the browser tests, so that they can be drawn again at any time.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.server.app.world import open_world
from tests.web.conftest import CHROMIUM
from tests.web.data import show

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SIZE = {"width": 1280, "height": 800}
MISTAKE = """\
behaviors:
  Walker:
    trainer_type: ppo
    hyperparameters:
      learning_rate: 3.0e-4
      num_epochs: 8
    max_steps: many
"""
PICTURES = {
    "run": "ui/runs/walker?smooth=0.6",
    "compare": "ui/compare?runs=walker,walker-2",
    "gate": "ui/runs/gate",
    "opponents": "ui/runs/striker/opponents",
    "new": "ui/new",
}


def settle(page: Page) -> None:
    """Wait until nothing is on its way."""
    page.locator("main h1").wait_for()
    page.wait_for_timeout(2500)


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home, open_world(Path(home)) as world, sync_playwright() as playwright:
        show(world, Path(home))
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        for name, path in PICTURES.items():
            page.goto(f"{world.server}/{path}")
            settle(page)
            if name == "new":
                page.get_by_label("Configuration (YAML)").fill(MISTAKE)
                page.get_by_role("alert").wait_for()
            page.screenshot(path=FOLDER / f"{name}.png")
            sys.stdout.write(f"wrote docs/pictures/{name}.png\n")
        browser.close()


if __name__ == "__main__":
    main()
