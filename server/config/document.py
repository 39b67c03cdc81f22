"""From text to plain values and back to places: the reader of configuration documents.

Reads YAML 1.1 as ML-Agents does (PyYAML's safe types), and JSON. It differs where silence hides a problem or text from
outside could do harm: duplicate keys, keys that aren't text, NaN, tags, runaway aliases and deep nesting are refused,
and what it returns is a tree of dict, list, str, int, float, bool and None without shared parts, fit to be stored.
`locate` says where in the text a problem is: at the line and column of the key that its path leads to.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn, Protocol, TypeAlias

import yaml
from yaml.constructor import SafeConstructor
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    StreamEndEvent,
)

from ludus.config.problems import Path, join_path, parse_path, show
from ludus.json_values import JsonObject
from server.kit.errors import InvalidConfig, Problem
from server.kit.json_limits import find_excess

MAX_BYTES: Final = 1024 * 1024
"""Longest document, as UTF-8."""
MAX_DEPTH: Final = 20
"""Deepest nesting; the document itself is 1. ML-Agents' own format needs 9."""
MAX_VALUES: Final = 50_000
"""Most values in a document. 256 behaviors with every key that there is have about 20,000."""
MAX_ALIASED: Final = 10_000
"""Most values that YAML aliases may add."""
_NUMBER_CHARACTERS: Final = 1100
"""Longest number as text: one of 1024 bits in base 2. Base 60 takes time with the square of the length."""
_MAX_TAG_DIRECTIVES: Final = 16
"""Most `%TAG` lines: libyaml compares each with those before it."""

Document: TypeAlias = str | bytes | Mapping[str, object]
"""A document as it is sent: YAML or JSON text, or a mapping of plain values."""
Repeated: TypeAlias = list[tuple[Path, object]]
"""Paths and values of keys that stand twice."""

_TAG: Final = "tag:yaml.org,2002:"
_SCALARS: Final = {
    f"{_TAG}null": SafeConstructor.construct_yaml_null,
    f"{_TAG}bool": SafeConstructor.construct_yaml_bool,
    f"{_TAG}int": SafeConstructor.construct_yaml_int,
    f"{_TAG}float": SafeConstructor.construct_yaml_float,
    f"{_TAG}str": SafeConstructor.construct_yaml_str,
    f"{_TAG}timestamp": SafeConstructor.construct_yaml_str,
    f"{_TAG}value": SafeConstructor.construct_yaml_str,
    f"{_TAG}merge": SafeConstructor.construct_yaml_str,
}
_COLLECTIONS: Final = {None, "!", f"{_TAG}map", f"{_TAG}seq"}
_NUMBERS: Final = {f"{_TAG}int", f"{_TAG}float"}
_TAG_DIRECTIVE: Final = re.compile("(?:^|[\n\r\x85\u2028\u2029])%TAG")
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH}"
_TOO_MANY: Final = f"the document has more than {MAX_VALUES} values"
_LONG_NUMBER: Final = "the number has more than 300 digits"


class _Mark(Protocol):
    """The parser's place in the text, from 0."""

    line: int
    column: int


@dataclass(slots=True)
class _Node:
    """A value of a YAML text with its place. Aliases share their nodes."""

    mark: _Mark
    value: object
    """A plain value; of a collection a dict or a list of nodes."""
    keys: dict[str, _Mark] = field(default_factory=dict)
    """The places of a mapping's keys."""


def parse_document(document: Document, repeated: Repeated | None = None) -> JsonObject:
    """Read a configuration document (YAML or JSON text, or a mapping of plain values) into a tree of its own.

    A key that stands twice in a mapping is refused. With `repeated`, only one with another value is: the others are
    added to it. Raises InvalidConfig. Nothing is executed, and time and memory are bounded by the limits of this
    module, which are checked while the text is read.
    """
    tree = document if isinstance(document, Mapping) else _read(_decode(document), repeated)
    value = _Plain().copy(tree, ())
    if value is None:
        _refuse("empty_document", "the document is empty; it needs at least `behaviors`")
    if not isinstance(value, dict):
        _refuse("not_a_mapping", f"the document is {show(value)}, not a mapping; it needs at least `behaviors`")
    return value


def text_of(document: Document, write: Callable[[Mapping[str, object]], str]) -> str:
    """Return a document as text, unchanged where it is text; `write` writes a mapping."""
    if isinstance(document, Mapping):
        return write(document)
    return document.decode("utf-8-sig") if isinstance(document, bytes) else document


@contextmanager
def located(document: Document | None, overrides: Mapping[str, object] | None = None) -> Iterator[None]:
    """Give problems for which a configuration is refused meanwhile their positions in its text."""
    try:
        yield
    except InvalidConfig as error:
        raise InvalidConfig(locate(document, error.problems, overrides)) from error


def locate(
    document: Document | None, problems: Sequence[Problem], overrides: Mapping[str, object] | None = None
) -> Sequence[Problem]:
    """Return problems with their positions in a document's text.

    Where the text has no such key, that is the position of the nearest parent; of what merge keys and aliases bring it
    is the original. A problem keeps the position that it has. It gets none where the document is a mapping, or JSON
    that YAML cannot read, and where an override has set its value.
    """
    if document is None or isinstance(document, Mapping) or all(problem.line is not None for problem in problems):
        return problems
    try:
        root = _compose(_decode(document), None)
    except (InvalidConfig, yaml.YAMLError):
        return problems
    if root is None:
        return problems
    overridden = set(_override_paths(overrides or {}))

    def position(problem: Problem) -> Problem:
        try:
            path = tuple(parse_path(problem.path))
        except ValueError:  # of a malformed override
            return problem
        if problem.line is not None or any(path[:length] in overridden for length in range(len(path) + 1)):
            return problem
        node, mark = root, root.mark
        for part in path:
            if isinstance(part, str) and isinstance(node.value, dict) and part in node.value:
                node, mark = node.value[part], node.keys[part]
            elif isinstance(part, int) and isinstance(node.value, list) and part < len(node.value):
                node = node.value[part]
                mark = node.mark
            else:
                break
        return replace(problem, line=mark.line + 1, column=mark.column + 1)

    return [position(problem) for problem in problems]


def _override_paths(overrides: Mapping[str, object]) -> Iterator[Path]:
    """Yield the paths that overrides set; and dotted ones as keys, as problems with the overrides themselves do."""
    for text, value in overrides.items():
        try:
            path = tuple(parse_path(text))
        except ValueError:  # `apply_overrides` refuses it
            continue
        if len(path) > 1:
            yield (text,)
        yield from (path + leaf for leaf in _leaves(value))


def _leaves(value: object) -> Iterable[Path]:
    if not isinstance(value, Mapping) or not value:
        return [()]
    return ((key, *leaf) for key, inner in value.items() for leaf in _leaves(inner))


def _refuse(code: str, message: str, path: Path = (), mark: _Mark | None = None) -> NoReturn:
    """Raise InvalidConfig with one problem."""
    line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
    raise InvalidConfig([Problem(join_path(path), code, message, line, column)])


def _decode(document: str | bytes) -> str:
    """Return the text without a byte order mark. Raises InvalidConfig."""
    try:
        data = document.encode() if isinstance(document, str) else document
        if len(data) > MAX_BYTES:
            _refuse("too_large", f"the document has more than {MAX_BYTES} bytes; a configuration needs a few thousand")
        return data.decode("utf-8-sig")
    except UnicodeError as error:
        _refuse("invalid_encoding", f"the document is not valid UTF-8 ({error}); save it as UTF-8")


def _read(text: str, repeated: Repeated | None) -> object:
    """Parse text that begins like a JSON object as JSON, and anything else, or broken JSON, as YAML.

    Raises InvalidConfig.
    """
    if text.lstrip().startswith("{"):
        excess = find_excess(text, values=MAX_VALUES, depth=MAX_DEPTH)
        if excess is not None:
            code, message = ("too_deep", _TOO_DEEP) if excess.of == "depth" else ("too_large", _TOO_MANY)
            raise InvalidConfig([Problem("", code, message, excess.line, excess.column)])
        try:
            return json.loads(text, object_pairs_hook=_json_object, parse_int=_json_integer)
        except ValueError:
            pass  # a flow mapping of YAML, or a problem that the YAML reader reports with its place
    try:
        return _compose(text, repeated)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _refuse("invalid_syntax", _explained(str(error.problem or error.context), text, mark), mark=mark)
    except yaml.YAMLError as error:
        _refuse("invalid_syntax", " ".join(str(error).split()))


def _json_object(pairs: list[tuple[str, object]]) -> JsonObject:
    if len(pairs) > len(values := dict(pairs)):
        raise ValueError("a key stands twice in one object")
    return values


def _json_integer(digits: str) -> int:
    if len(digits) > _NUMBER_CHARACTERS:
        raise ValueError(_LONG_NUMBER)
    return int(digits)


def _explained(problem: str, text: str, mark: _Mark | None) -> str:
    """Name the character that the parser stumbled over, and what to do about the usual ones."""
    lines = text.splitlines()
    rest = lines[mark.line][mark.column :] if mark is not None and mark.line < len(lines) else ""
    if "cannot start any token" not in problem or not rest:
        return problem
    if rest.startswith("\t"):
        return "a tab stands where the line is indented; YAML takes spaces alone"
    if rest.startswith("```"):
        return "the line is a fence of Markdown (```), not YAML; delete it"
    return f"no value can begin with the character {rest[0]!r}; put the value in quotes"


def _compose(text: str, repeated: Repeated | None) -> _Node | None:
    """Return the only document of a YAML text, None if there is none. Raises InvalidConfig, YAMLError."""
    if len(_TAG_DIRECTIVE.findall(text)) > _MAX_TAG_DIRECTIVES:
        _refuse("tag_refused", "the document declares tags (`%TAG`); write plain values")
    return _Composer(text, repeated).document()


class _Composer:
    """Makes nodes of the parser's events, so that depth, aliases and keys are checked as they come."""

    def __init__(self, text: str, repeated: Repeated | None) -> None:
        self._loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)  # libyaml's, where PyYAML has it
        self._repeated = repeated
        self._anchors: dict[str, tuple[_Node, int]] = {}
        self._open: set[str | None] = set()
        self._values = 0
        self._aliased = 0

    def document(self) -> _Node | None:
        self._next()  # the stream's start
        if isinstance(self._next(), StreamEndEvent):
            return None
        node = self._node(self._next(), ())
        self._next()  # the document's end
        after = self._next()
        if not isinstance(after, StreamEndEvent):
            _refuse("invalid_syntax", "a second document begins; send one", mark=after.start_mark)
        return node

    def _next(self) -> Event:
        event: Event = self._loader.get_event()
        return event

    def _node(self, event: Event, path: Path) -> _Node:
        mark = event.start_mark
        assert mark is not None
        if isinstance(event, AliasEvent):
            name = str(event.anchor)
            if name in self._open:
                _refuse("alias_refused", f"the alias *{name} stands inside its own anchor", path, mark)
            if name not in self._anchors:
                _refuse("alias_refused", f"the alias *{name} has no anchor before it", path, mark)
            node, size = self._anchors[name]
            self._aliased += size
            if self._aliased > MAX_ALIASED:
                _refuse("alias_refused", f"aliases expand to more than {MAX_ALIASED} values", path, mark)
            return node
        assert isinstance(event, ScalarEvent | CollectionStartEvent)
        before = self._values + self._aliased
        self._values += 1
        if self._values > MAX_VALUES + 1:  # with the document itself
            _refuse("too_large", _TOO_MANY, (), mark)
        if isinstance(event, ScalarEvent):
            node = _Node(mark, self._scalar(event, self._tag(event), path))
        else:
            if event.tag not in _COLLECTIONS:
                _refuse("tag_refused", f"the tag {show(event.tag)} is refused; write a plain value", path, mark)
            if len(path) >= MAX_DEPTH:
                _refuse("too_deep", _TOO_DEEP, path, mark)
            self._open.add(event.anchor)
            if isinstance(event, MappingStartEvent):
                node = self._mapping(mark, path)
            else:
                items: list[_Node] = []
                while not isinstance(inner := self._next(), SequenceEndEvent):
                    items.append(self._node(inner, (*path, len(items))))
                node = _Node(mark, items)
            self._open.discard(event.anchor)
        if event.anchor is not None:
            self._anchors[event.anchor] = (node, self._values + self._aliased - before)
        return node

    def _tag(self, event: ScalarEvent) -> str:
        if event.tag is None or event.tag == "!":
            return str(self._loader.resolve(yaml.ScalarNode, event.value, event.implicit))
        return event.tag

    def _scalar(self, event: ScalarEvent, tag: str, path: Path) -> object:
        if tag in _NUMBERS and len(event.value) > _NUMBER_CHARACTERS:
            _refuse("out_of_range", _LONG_NUMBER, path, event.start_mark)
        if tag not in _SCALARS:
            _refuse("tag_refused", f"the tag {show(tag)} is refused; write a plain value", path, event.start_mark)
        try:
            return _SCALARS[tag](self._loader, yaml.ScalarNode(tag, event.value))
        except (ValueError, LookupError, OverflowError):
            kind = tag.removeprefix(_TAG)
            _refuse("invalid_syntax", f"{show(event.value)} is no legal YAML {kind}", path, event.start_mark)

    def _mapping(self, mark: _Mark, path: Path) -> _Node:
        written: dict[str, _Node] = {}
        merged: dict[str, _Node] = {}
        marks: dict[str, _Mark] = {}
        merged_marks: dict[str, _Mark] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            place = event.start_mark
            assert place is not None
            if not isinstance(event, ScalarEvent):
                _refuse("key_not_text", "a key has to be plain text", path, place)
            tag = self._tag(event)
            if tag == f"{_TAG}merge":
                source = self._node(self._next(), (*path, "<<"))
                for mapping in source.value if isinstance(source.value, list) else [source]:
                    if not isinstance(mapping.value, dict):
                        _refuse("invalid_syntax", "`<<` merges mappings only", path, place)
                    for name in [name for name in mapping.value if name not in merged]:  # the first that has it wins
                        merged[name], merged_marks[name] = mapping.value[name], mapping.keys[name]
                continue
            key = self._scalar(event, tag, path)
            if not isinstance(key, str):
                problem = f"the key {event.value} isn't text but {show(key)}; put it in quotes"
                _refuse("key_not_text", problem, path, place)
            if event.anchor is not None:
                self._anchors[event.anchor] = (_Node(place, key), 1)
            if key in written and self._repeated is None:
                _refuse("duplicate_key", f"the key {show(key)} stands twice; keep one", path, place)
            node = self._node(self._next(), (*path, key))
            if key in written and self._repeated is not None:
                value = _Plain().copy(node, path)
                if repr(value) != repr(_Plain().copy(written[key], path)):  # 1 equals True, and NaN not itself
                    message = f"the key {show(key)} stands twice, with different values; keep one"
                    _refuse("duplicate_key", message, path, place)
                self._repeated.append(((*path, key), value))
            written[key], marks[key] = node, place
        return _Node(mark, merged | written, merged_marks | marks)


class _Plain:
    """Copies a tree of nodes or plain values, checking each of them."""

    def __init__(self) -> None:
        self._values = -1  # the document itself is none
        self._characters = 0

    def copy(self, value: object, path: Path) -> object:
        """Return the plain values of a tree. Raises InvalidConfig."""
        self._values += 1
        if self._values > MAX_VALUES:
            _refuse("too_large", _TOO_MANY)
        match value.value if isinstance(value, _Node) else value:
            case None | bool() as constant:
                return constant
            case int() as number:
                if number.bit_length() > 1024:
                    _refuse("out_of_range", _LONG_NUMBER, path)
                return number
            case str() as text:
                return self._text(text, path)
            case float() as number:
                if not math.isfinite(number):
                    _refuse("not_finite", f"{number} is not a finite number", path)
                return number
            case Mapping() | list() | tuple() if len(path) >= MAX_DEPTH:
                _refuse("too_deep", _TOO_DEEP, path)
            case Mapping() as mapping:
                return {self._key(key, path): self.copy(item, (*path, key)) for key, item in mapping.items()}
            case list() | tuple() as items:
                return [self.copy(item, (*path, index)) for index, item in enumerate(items)]
            case _:
                _refuse("wrong_type", f"a {type(value).__name__} is not a plain value", path)

    def _key(self, key: object, path: Path) -> str:
        if not isinstance(key, str):
            _refuse("key_not_text", f"the key {show(key)} isn't text; put it in quotes", path)
        return self._text(key, path)

    def _text(self, text: str, path: Path) -> str:
        if _UNSTORABLE.search(text):
            _refuse("invalid_encoding", "the text holds a NUL character or half a surrogate pair", path)
        self._characters += len(text)
        if self._characters > MAX_BYTES:
            _refuse("too_large", f"the document's texts have more than {MAX_BYTES} characters")
        return text
