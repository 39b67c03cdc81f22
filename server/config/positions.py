"""Where in the text of a document its problems are: line and column of the key that a path leads to."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import yaml

from ludus.config.problems import Path, parse_path
from server.config.document import LOADER, MERGE_TAG, Document, decode, read
from server.kit.errors import InvalidConfig, Problem

Children: TypeAlias = Mapping[str | int, tuple[Any, yaml.Node]]
"""By key or index: the mark of the key, or of the element, and the value."""


@contextmanager
def located(document: Document | None, overrides: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Give problems for which a configuration is refused meanwhile their positions in its text."""
    try:
        yield
    except InvalidConfig as error:
        raise InvalidConfig(locate(document, error.problems, overrides)) from error


def locate(
    document: Document | None, problems: Sequence[Problem], overrides: Mapping[str, Any] | None = None
) -> Sequence[Problem]:
    """Return problems with their positions in a document's text.

    Where the text has no such key, that is the position of the nearest parent; of what merge keys and aliases bring it
    is the original. A problem keeps the position that it has. It gets none where the document is a mapping, or JSON
    that YAML cannot read, and where an override has set its value.
    """
    if document is None or isinstance(document, Mapping) or all(each.line is not None for each in problems):
        return problems
    root = _composed(document)
    if root is None:
        return problems
    overridden = set(_leaves(overrides or {}))
    children = cache(_children)

    def find(problem: Problem) -> Problem:
        if problem.line is not None:
            return problem
        try:
            path = tuple(parse_path(problem.path))
        except ValueError:  # of a malformed override
            return problem
        if any(path[:length] in overridden for length in range(len(path) + 1)):
            return problem
        mark, node = root.start_mark, root
        for part in path:
            if part not in children(node):
                break
            mark, node = children(node)[part]
        return replace(problem, line=mark.line + 1, column=mark.column + 1)

    return [find(each) for each in problems]


def _composed(document: str | bytes) -> yaml.Node | None:
    """Return the nodes of a text; None where it is no YAML within the limits. PyYAML itself knows none."""
    try:
        text = decode(document)
        read(text)
        node: yaml.Node | None = yaml.compose(text, LOADER)
    except (InvalidConfig, yaml.YAMLError):
        return None
    return node


def _children(node: yaml.Node) -> Children:
    if isinstance(node, yaml.SequenceNode):
        return {index: (item.start_mark, item) for index, item in enumerate(node.value)}
    if not isinstance(node, yaml.MappingNode):
        return {}
    own: dict[str | int, tuple[Any, yaml.Node]] = {}
    merged: dict[str | int, tuple[Any, yaml.Node]] = {}
    for key, value in node.value:
        if key.tag != MERGE_TAG:
            own[key.value] = (key.start_mark, value)
            continue
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            for name, child in _children(source).items():
                merged.setdefault(name, child)
    return {**merged, **own}


def _leaves(overrides: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the paths that overrides set; and dotted ones as keys, as problems with the overrides themselves do."""
    for text, value in overrides.items():
        try:
            path = tuple(parse_path(text))
        except ValueError:  # `apply_overrides` refuses it
            continue
        if len(path) > 1:
            yield (text,)
        yield from (path + below for below in _below(value))


def _below(value: Any) -> Iterable[Path]:
    if not isinstance(value, Mapping) or not value:
        return [()]
    return ((key, *below) for key, inner in value.items() for below in _below(inner))
