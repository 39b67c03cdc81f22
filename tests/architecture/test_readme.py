"""The README tells the truth: its tree, its commands, its configuration."""

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ludus.cli import ludus
from server.config.presets import read_preset

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / ".github" / "CONTRIBUTING.md"]


def shell_lines(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in the page's shell blocks."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def ludus_commands() -> list[list[str]]:
    in_blocks = [words for words in shell_lines(README) if words[0] == "ludus"]
    inline = [shlex.split(code) for code in re.findall(r"`(ludus [^`]+)`", README)]
    return [*in_blocks, *(words for words in inline if words[1] != "<-")]


@pytest.mark.parametrize("words", ludus_commands(), ids=" ".join)
def test_every_ludus_command_exists_with_its_options(words: list[str]) -> None:
    command: click.Command = ludus
    context = click.Context(ludus, info_name="ludus")
    rest = words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, f"no command {rest[0]}"
        command, rest = found, rest[1:]
        context = click.Context(command, parent=context)
        if not rest:
            break
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for word in itertools.takewhile(lambda word: word != "--", rest):  # behind it is another program's
        if word.startswith("-"):
            assert word.partition("=")[0] in known


def test_every_make_target_that_is_named_exists() -> None:
    named = {word for names in re.findall(r"`?make ((?:[a-z0-9-]+ ?)+)`", README) for word in names.split()}
    named |= {words[1] for words in shell_lines(README) if words[0] == "make"}

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
