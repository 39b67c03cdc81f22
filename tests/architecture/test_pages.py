"""The pages tell the truth: links, commands, recipes, the README's tree; and each begins with something to do."""

import ast
import importlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ludus.cli import ludus
from ludus.cli.options import REST
from server.config.presets import read_preset

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
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
        rest = rest[: rest.index(REST)] if REST in rest else rest  # the others are the game's
        rest = rest[: rest.index("--")] if "--" in rest else rest  # and those behind it another command's
        context = click.Context(command, parent=context)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    options = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
    return f"{' '.join(words)}: no option {options - known}" if options - known and command.name != "learn" else None


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_ludus_command_exists_with_its_options(page: Path) -> None:
    assert [wrong for words in ludus_commands(page.read_text()) if (wrong := mistake(words))] == []


def test_every_ludus_command_in_a_sentence_of_the_readme_exists_with_its_options() -> None:
    calls = [shlex.split(code) for code in re.findall(r"`(ludus [^`]+)`", README)]

    assert [wrong for words in calls if words[1] != "<-" and (wrong := mistake([*takewhile("--".__ne__, words)]))] == []


def test_a_command_that_does_not_exist_is_noticed() -> None:
    (first, second, third) = ludus_commands(
        "```sh\nludus fly\nRUN=$(ludus run show --sideways)\nludus run show a\n```\n"
    )

    assert mistake(first) == "no command fly"
    assert mistake(second) == "ludus run show --sideways: no option {'--sideways'}"
    assert mistake(third) is None


def git(*arguments: str) -> str:
    """Return the output of a call of git; empty if it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
RECIPES = [shlex.split(call)[1:] for call in re.findall(r"`git (show [0-9a-f]{7}[^`]*)`", CONTRIBUTING)]
WITH_HISTORY = pytest.mark.skipif(
    git("rev-parse", "--is-shallow-repository") != "false", reason="needs a clone with its whole history"
)
SOURCE = re.compile(r"^(server|worker|ludus|proto|migrations)/.*\.py$")


def test_there_is_a_recipe_for_each_part_that_people_add() -> None:
    assert len(RECIPES) >= 9


@WITH_HISTORY
@pytest.mark.parametrize("arguments", RECIPES, ids=" ".join)
def test_a_recipe_points_at_a_commit_of_the_history_that_changes_something(arguments: list[str]) -> None:
    commit = arguments[0]

    assert git("merge-base", commit, "HEAD") == git("rev-parse", f"{commit}^{{commit}}") != ""
    assert git("show", "--format=", "--stat", *arguments)


@WITH_HISTORY
@pytest.mark.parametrize(("recipe", "files"), [("An algorithm", 9), ("A reward signal", 4)])
def test_a_recipe_is_followed_in_few_source_files(recipe: str, files: int) -> None:
    section = CONTRIBUTING.split(f"### {recipe}\n")[1].split("\n### ")[0]
    (commit,) = re.findall(r"Followed by: `git show ([0-9a-f]+)`", section)

    touched = git("show", "--name-only", "--format=", commit).splitlines()

    assert 0 < len([path for path in touched if SOURCE.match(path) and "_pb2" not in path]) <= files


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


def test_every_make_target_that_is_named_exists() -> None:
    named = {word for names in re.findall(r"`?make ((?:[a-z0-9-]+ ?)+)`", README) for word in names.split()}
    named |= set(re.findall(r"^make ([a-z0-9-]+)", README, re.MULTILINE))

    assert len(named) > 10
    assert named <= TARGETS


def test_every_folder_of_the_tree_exists() -> None:
    (tree,) = re.findall(r"## The tree.*?```\n(.*?)```", README, re.DOTALL)
    parents: list[str] = []
    for line in tree.splitlines():
        names = re.match(r"(\s*)((?:[\w.]+/? ?)+?)(?:\s{2,}|$)", line)
        assert names is not None, line
        if not names[1]:
            parents = names[2].split()[:1]
        for name in names[2].split():
            path = ROOT / name if not names[1] else ROOT / parents[0] / name
            assert path.exists(), path


def test_every_package_is_in_the_tree() -> None:
    (tree,) = re.findall(r"## The tree.*?```\n(.*?)```", README, re.DOTALL)

    for parent in ("ludus", "server", "worker"):
        (listed,) = re.findall(rf"^{parent}/.*\n((?:  .*\n)+)", tree, re.MULTILINE)
        packages = {path.parent.name for path in (ROOT / parent).glob("*/__init__.py")}
        assert packages == set(re.findall(r"(\w+)/(?= )", re.sub(r"   +\S.*", "   ", listed)))


def test_the_configuration_that_is_shown_is_the_demos() -> None:
    (document,) = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    shown, preset = yaml.safe_load(document), yaml.safe_load(read_preset("cartpole"))

    def differing(part: Any, whole: Any, path: str = "") -> Iterator[str]:
        if not isinstance(part, dict):
            if part != whole:
                yield f"{path}: {part} is shown, {whole} is used"
            return
        for key, value in part.items():
            yield from differing(value, whole[key], f"{path}.{key}")

    assert list(differing(shown, preset)) == []


def test_no_page_installs_ludus_from_an_index_where_it_is_not() -> None:
    for page in PAGES:
        lines = [line for line in page.read_text().splitlines() if "pip install" in line]
        assert not any(re.search(r"pip install [^|`]*(?<![./\w-])['\"]?ludus(?!-)", line) for line in lines), page
