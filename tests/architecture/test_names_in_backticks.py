"""A name in backticks, in a docstring or a comment of the source, leads somewhere: a reader who follows it arrives."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for room in ("ludus", "server", "worker") for path in (ROOT / room).rglob("*.py"))

OF_OTHER_PROJECTS = {
    "ActionModel",
    "DecayedValue",
    "GhostTrainer",
    "LinearEncoder",
    "MultiAgentNetworkBody",
    "classic.connect_four_v3",
    "environment_parameter_manager.py",
    "my_package.arena",
    "off_policy_trainer.py",
}
"""Names of ML-Agents, gRPC, Gymnasium and PettingZoo, and of examples."""
TOKEN = re.compile(r"""(?s)(\"{3}|'{3})(?:\\.|.)*?\1|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*|[A-Za-z_]\w*""")
"""A text, a comment or a name in Python: much faster than Python's own tokenizer, which is written in Python."""
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"[a-z_]\w*(\.\w+)+")
CLASS = re.compile(r"[A-Z][a-z]+([A-Z][a-z0-9]+)+")


def read(source: str) -> tuple[set[str], list[tuple[int, str]]]:
    """Return the words of a file's code, and its prose with lines.

    Words are the names, and those in short texts: keys, settings, options. Prose is the docstrings, those of attributes
    included, and the comments.
    """
    words: set[str] = set()
    texts = []
    for token in TOKEN.finditer(source):
        text = token.group()
        if text.startswith("#"):
            texts.append((source.count("\n", 0, token.start()) + 1, text))
        elif text[0] not in "\"'":
            words.add(text)
        elif len(text) < 60:
            words.update(re.findall(r"[A-Za-z_]\w*", text))
    texts += [
        (node.lineno, node.value.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return words, texts


class Vocabulary:
    """All names that a reference can mean."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.words: set[str] = set()
        self.references: dict[str, str] = {}
        """The place of each name in backticks; the last one of several."""
        for path in SOURCES:
            parts = [*path.relative_to(ROOT).with_suffix("").parts]
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            # A module is named from any of its packages on: `collector.session` for `ludus.collector.session`.
            self.modules |= {
                ".".join(parts[first:last]) for first in range(len(parts)) for last in range(first + 1, len(parts) + 1)
            }
            words, texts = read(path.read_text())
            self.words |= words
            for line, text in texts:
                for name in IN_BACKTICKS.findall(text):
                    self.references[name.removesuffix("()")] = f"{path.relative_to(ROOT)}:{line}"
        for proto in (ROOT / "proto").rglob("*.proto"):
            self.words.update(re.findall(r"[A-Za-z_]\w*", proto.read_text()))

    def knows(self, name: str) -> bool:
        """Whether a name in backticks leads somewhere; text that is no dotted name and no class name does."""
        if CLASS.fullmatch(name):
            return name in self.words
        if not DOTTED.fullmatch(name) or name in self.modules:
            return True
        parts = name.split(".")
        inside = (
            ".".join(parts[:size]) in self.modules and self.all_words(parts[size:]) for size in range(1, len(parts))
        )
        is_path = any(module.split(".")[0] == parts[0] for module in self.modules)
        return any(inside) or (not is_path and self.all_words(parts))

    def all_words(self, parts: list[str]) -> bool:
        """Whether the code has each of these names."""
        return self.words.issuperset(parts)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary()


def test_each_name_in_backticks_is_one_of_the_code_or_of_a_project_that_is_listed(vocabulary: Vocabulary) -> None:
    unknown = {name for name in vocabulary.references if not vocabulary.knows(name)}

    assert {vocabulary.references[name] + " " + name for name in unknown - OF_OTHER_PROJECTS} == set()
    assert OF_OTHER_PROJECTS - unknown == set(), "no docstring names these any more"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("ludus.http2.stream", True),
        ("http2.stream.Stream", True),
        ("http2.stream.Rivulet", False),
        ("ludus.http2.rivulet", False),
        ("Http2Server", True),
        ("QuicServer", False),
        ("network_settings.memory", True),
        ("2 * index + 1", True),
    ],
)
def test_the_rule_on_names_in_backticks_bites(vocabulary: Vocabulary, name: str, known: bool) -> None:
    assert vocabulary.knows(name) == known
