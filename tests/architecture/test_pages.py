"""The pages tell the truth: their links, their commands; and each begins with something to do."""

import ast
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest

from ludus.cli import ludus

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
OTHERS = [ROOT / name for name in ("README.md", "CHANGELOG.md", ".github/CONTRIBUTING.md", "benchmarks/README.md")]
OTHERS += [ROOT / "proto" / "README.md", *sorted((ROOT / "examples").glob("*/README.md"))]
PAGES = [*OTHERS, *DOCS, *sorted((ROOT / "docs" / "adr").glob("*.md"))]
GENERATED = {"configuration.md", "results.md", "run-states.md", "settings.md", "tree.md"}
"""Tables that programs write, for looking things up."""
SCREEN = 30
"""Lines that a reader sees without scrolling."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def before_the_first_command(text: str) -> int:
    """Count the lines with text above the first block of code; all of them where there is none."""
    return sum(1 for line in text.partition("\n```")[0].splitlines() if line.strip())


@pytest.mark.parametrize("page", [page for page in DOCS if page.name not in GENERATED], ids=name)
def test_a_page_shows_the_first_command_within_one_screen(page: Path) -> None:
    text = page.read_text()

    assert "\n```" in text, "no command at all"
    assert before_the_first_command(text) <= SCREEN


def test_a_command_below_the_screen_is_noticed() -> None:
    assert before_the_first_command("# Title\n\n" + "text\n" * 30 + "\n```sh\nls\n```\n") == 31


def test_the_tree_begins_with_rooms_that_a_newcomer_can_hold() -> None:
    first, _, rest = (ROOT / "docs" / "tree.md").read_text().partition("\n# Every file\n")
    rooms = re.findall(r"^\| \[((?:ludus|server|worker)/\w+)\]", first, re.MULTILINE)

    assert rest
    assert 30 < len(rooms) <= 40
    assert max(len(line) for line in first.splitlines()) < 220, "one line each"


def anchor(heading: str) -> str:
    """Return the name by which GitHub links to a heading."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", code, re.MULTILINE)}


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Yield the relative links that lead to no file, or to no heading of the page that they name."""
    for link in re.findall(r"\]\((?!https?://|mailto:)([^)\s]+)\)", text):
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (fragment and fragment not in anchors(target.read_text())):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert list(broken_links(page, page.read_text())) == []


def test_a_link_to_a_file_or_a_heading_that_is_not_there_is_noticed() -> None:
    text = "[a](docs/nowhere.md) [b](docs/ci.md#nowhere) [c](#nowhere) [d](docs/ci.md)"

    assert list(broken_links(ROOT / "README.md", text)) == ["docs/nowhere.md", "docs/ci.md#nowhere", "#nowhere"]


def ludus_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each call of `ludus` in the shell blocks of a page."""
    for block in re.findall(r"^ *```(?:sh|bash)\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = list(shlex.shlex(line, posix=True, punctuation_chars=True))
            for at, word in enumerate(words):
                if word == "ludus":
                    yield list(takewhile(lambda word: not set(word) <= set("();<>|&"), words[at:]))


def mistake(words: list[str]) -> str | None:
    """Say which command or option of a call does not exist; None if all do."""
    command: click.Command = ludus
    context = click.Context(ludus, info_name="ludus")
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        if found is None:
            return f"no command {rest[0]}"
        command, rest = found, rest[1:]
        context = click.Context(command, parent=context)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    return f"{' '.join(words)}: no option {options - known}" if options - known and command.name != "learn" else None


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_ludus_command_exists_with_its_options(page: Path) -> None:
    assert [wrong for words in ludus_commands(page.read_text()) if (wrong := mistake(words))] == []


def test_a_command_that_does_not_exist_is_noticed() -> None:
    (first, second, third) = ludus_commands(
        "```sh\nludus fly\nRUN=$(ludus run show --sideways)\nludus run show a\n```\n"
    )

    assert mistake(first) == "no command fly"
    assert mistake(second) == "ludus run show --sideways: no option {'--sideways'}"
    assert mistake(third) is None


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


RECIPES = [
    shlex.split(call)[1:]
    for call in re.findall(r"`git (show [0-9a-f]{7}[^`]*)`", (ROOT / ".github" / "CONTRIBUTING.md").read_text())
]


def test_there_is_a_recipe_for_each_part_that_people_add() -> None:
    assert len(RECIPES) >= 9


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a copy without history")
@pytest.mark.parametrize("arguments", RECIPES, ids=" ".join)
def test_a_recipe_points_at_a_commit_that_changes_something(arguments: list[str]) -> None:
    if git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("a clone without history")

    assert git("show", "--format=", "--stat", *arguments)


def unknown_imports(text: str) -> Iterator[str]:
    """Yield what the Python blocks of a page import from this project and that is not there."""
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in {"ludus", "server", "worker"}:
                module = importlib.import_module(str(node.module))
                yield from (f"{node.module}.{each.name}" for each in node.names if not hasattr(module, each.name))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_import_of_an_example_works(page: Path) -> None:
    assert list(unknown_imports(page.read_text())) == []


def test_an_import_of_something_that_is_not_there_is_noticed() -> None:
    assert list(unknown_imports("```python\nfrom ludus.client import Client, Nobody\n```\n")) == ["ludus.client.Nobody"]
