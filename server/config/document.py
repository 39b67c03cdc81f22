"""From text to plain values: the reader of configuration documents.

Reads YAML 1.1 as ML-Agents does (PyYAML's safe types), and JSON. It differs where silence hides a problem or text from
outside could do harm: duplicate keys, keys that aren't text, NaN, tags, runaway aliases and deep nesting are refused,
and what it returns is a tree of dict, list, str, int, float, bool and None without shared parts, fit to be stored.
"""

import copy
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

import yaml
from yaml.constructor import SafeConstructor
from yaml.events import AliasEvent, MappingEndEvent, MappingStartEvent, ScalarEvent, SequenceEndEvent, StreamEndEvent

from ludus.config.problems import Path, join_path, show
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

Document: TypeAlias = str | bytes | Mapping[str, Any]
"""A document as it is sent: YAML or JSON text, or a mapping of plain values."""

_TAG: Final = "tag:yaml.org,2002:"
_SCALARS: Final = {
    f"{_TAG}null": SafeConstructor.construct_yaml_null,
    f"{_TAG}bool": SafeConstructor.construct_yaml_bool,
    f"{_TAG}int": SafeConstructor.construct_yaml_int,
    f"{_TAG}float": SafeConstructor.construct_yaml_float,
    f"{_TAG}str": SafeConstructor.construct_yaml_str,
    f"{_TAG}timestamp": SafeConstructor.construct_yaml_str,
    f"{_TAG}value": SafeConstructor.construct_yaml_str,
}
MERGE_TAG: Final = f"{_TAG}merge"
"""Of the key `<<`."""
LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML has it."""
_COLLECTIONS: Final = {None, "!", f"{_TAG}map", f"{_TAG}seq"}
_NUMBERS: Final = {f"{_TAG}int", f"{_TAG}float"}
_TAG_DIRECTIVE: Final = re.compile("(?:^|[\n\r\x85\u2028\u2029])%TAG")
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH}"
_TOO_MANY: Final = f"the document has more than {MAX_VALUES} values"
_MERGE: Final = object()
"""Stands for the key `<<`."""


def parse_document(document: Document, repeated: list[tuple[Path, Any]] | None = None) -> dict[str, Any]:
    """Read a configuration document (YAML or JSON text, or a mapping of plain values) into a tree of its own.

    A key that stands twice in a mapping is refused. With `repeated`, only one with another value is: the others are
    added to it, as path and value. Raises InvalidConfig. Nothing is executed, and time and memory are bounded by the
    limits of this module, which are checked while the text is read.
    """
    value = document if isinstance(document, Mapping) else read(decode(document), repeated)
    if value is None:
        _refuse("empty_document", "the document is empty; it needs at least `behaviors`")
    if not isinstance(value, Mapping):
        _refuse("not_a_mapping", f"the document is {show(value)}, not a mapping; it needs at least `behaviors`")
    return _Plain().mapping(value, ())


def text_of(document: Document, write: Callable[[Mapping[str, Any]], str]) -> str:
    """Return a document as text, unchanged where it is text; `write` writes a mapping."""
    if isinstance(document, Mapping):
        return write(document)
    return document.decode("utf-8-sig") if isinstance(document, bytes) else document


def _refuse(code: str, message: str, path: Path = (), mark: Any = None) -> NoReturn:
    """Raise InvalidConfig with one problem. `mark` is the parser's, of its place."""
    line, column = (None, None) if mark is None else (mark.line + 1, mark.column + 1)
    raise InvalidConfig([Problem(join_path(path), code, message, line, column)])


def decode(document: str | bytes) -> str:
    """Return the text without a byte order mark. Raises InvalidConfig."""
    try:
        data = document.encode() if isinstance(document, str) else document
        if len(data) > MAX_BYTES:
            _refuse("too_large", f"the document has more than {MAX_BYTES} bytes; a configuration needs a few thousand")
        return data.decode("utf-8-sig")
    except UnicodeError as error:
        _refuse("invalid_encoding", f"the document is not valid UTF-8 ({error}); save it as UTF-8")


def _explained(problem: str, text: str, mark: Any) -> str:
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


def read(text: str, repeated: list[tuple[Path, Any]] | None = None) -> object:
    """Parse text that begins like a JSON object as JSON, and anything else, or broken JSON, as YAML.

    `repeated` is that of `parse_document`. Raises InvalidConfig.
    """
    if text.lstrip().startswith("{"):
        excess = find_excess(text, values=MAX_VALUES, depth=MAX_DEPTH)
        if excess is not None:
            code, message = ("too_deep", _TOO_DEEP) if excess.of == "depth" else ("too_large", _TOO_MANY)
            raise InvalidConfig([Problem("", code, message, excess.line, excess.column)])
        try:
            return json.loads(text, object_pairs_hook=_object)
        except ValueError:
            pass  # a flow mapping of YAML, or a problem that the YAML reader reports with its place
    if len(_TAG_DIRECTIVE.findall(text)) > _MAX_TAG_DIRECTIVES:
        _refuse("tag_refused", "the document declares tags (`%TAG`); write plain values")
    try:
        return _Yaml(text, repeated).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _refuse("invalid_syntax", _explained(str(error.problem or error.context), text, mark), mark=mark)
    except yaml.YAMLError as error:
        _refuse("invalid_syntax", " ".join(str(error).split()))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object, which may not hold a key twice."""
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {show(key)} stands twice in one object")
        result[key] = value
    return result


class _Yaml:
    """Builds plain values from the parser's events, so that depth, aliases and keys are checked as they come."""

    def __init__(self, text: str, repeated: list[tuple[Path, Any]] | None) -> None:
        self._loader = LOADER(text)
        self._repeated = repeated
        self._anchors: dict[str, tuple[object, int]] = {}
        self._open: set[str | None] = set()
        self._values = 0
        self._aliased = 0

    def document(self) -> object:
        """Return the only document, None if there is none."""
        self._next()  # the stream's start
        if isinstance(self._next(), StreamEndEvent):
            return None
        value = self._value(self._next(), ())
        self._next()  # the document's end
        after = self._next()
        if not isinstance(after, StreamEndEvent):
            _refuse("invalid_syntax", "a second document begins; send one", mark=after.start_mark)
        return value

    def _next(self) -> Any:
        return self._loader.get_event()

    def _value(self, event: Any, path: Path) -> Any:
        if isinstance(event, AliasEvent):
            return self._alias(event, path)
        anchor = event.anchor
        before = self._values + self._aliased
        self._values += 1
        if self._values > MAX_VALUES + 1:  # with the document itself
            _refuse("too_large", _TOO_MANY, (), event.start_mark)
        if isinstance(event, ScalarEvent):
            value = self._scalar(event, path)
        else:
            self._open.add(anchor)
            value = self._collection(event, path)
            self._open.discard(anchor)
        if anchor is not None:
            self._anchors[anchor] = (value, self._values + self._aliased - before)
        return value

    def _alias(self, event: AliasEvent, path: Path) -> object:
        name, mark = event.anchor, event.start_mark
        if name in self._open:
            _refuse("alias_refused", f"the alias *{name} stands inside its own anchor", path, mark)
        if name not in self._anchors:
            _refuse("alias_refused", f"the alias *{name} has no anchor before it", path, mark)
        value, size = self._anchors[name]
        self._aliased += size
        if self._aliased > MAX_ALIASED:
            _refuse("alias_refused", f"aliases expand to more than {MAX_ALIASED} values", path, mark)
        return copy.deepcopy(value)

    def _scalar(self, event: Any, path: Path) -> Any:
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag in _NUMBERS and len(event.value) > _NUMBER_CHARACTERS:
            _refuse("out_of_range", "the number has more than 300 digits", path, event.start_mark)
        if tag == MERGE_TAG:
            return _MERGE
        if tag not in _SCALARS:
            self._refuse_tag(tag, event, path)
        node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        try:
            return _SCALARS[tag](self._loader, node)
        except (ValueError, LookupError, OverflowError):
            kind = tag.removeprefix(_TAG)
            _refuse("invalid_syntax", f"{show(event.value)} is no legal YAML {kind}", path, event.start_mark)

    def _collection(self, event: Any, path: Path) -> object:
        if event.tag not in _COLLECTIONS:
            self._refuse_tag(event.tag, event, path)
        if len(path) >= MAX_DEPTH:
            _refuse("too_deep", _TOO_DEEP, path, event.start_mark)
        return self._mapping(path) if isinstance(event, MappingStartEvent) else self._sequence(path)

    def _sequence(self, path: Path) -> list[Any]:
        result: list[Any] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            result.append(_text_if_merge(self._value(event, (*path, len(result)))))
        return result

    def _mapping(self, path: Path) -> dict[str, Any]:
        written: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            key = self._key(event, path)
            if key is _MERGE:
                self._merge(merged, self._value(self._next(), (*path, "<<")), event, path)
                continue
            if key in written and self._repeated is None:
                _refuse("duplicate_key", f"the key {show(key)} stands twice; keep one", path, event.start_mark)
            value = _text_if_merge(self._value(self._next(), (*path, key)))
            if key in written and self._repeated is not None:
                if repr(value) != repr(written[key]):  # 1 equals True, and NaN not itself
                    message = f"the key {show(key)} stands twice, with different values; keep one"
                    _refuse("duplicate_key", message, path, event.start_mark)
                self._repeated.append(((*path, key), value))
            written[key] = value
        return {**merged, **written}

    def _key(self, event: Any, path: Path) -> Any:
        """Return a mapping's key: text, or the marker of a merge."""
        if isinstance(event, ScalarEvent):
            key = self._value(event, path)
            self._values -= 1  # it is no value
            if key is _MERGE or isinstance(key, str):
                return key
            problem = f"the key {event.value} isn't text but {show(key)}; put it in quotes"
        else:
            problem = "a key has to be plain text"
        _refuse("key_not_text", f"{problem}", path, event.start_mark)

    def _merge(self, merged: dict[str, Any], value: object, event: Any, path: Path) -> None:
        """Add the mappings behind `<<`; the first that has a key wins."""
        for source in value if isinstance(value, list) else [value]:
            if not isinstance(source, dict):
                _refuse("invalid_syntax", "`<<` merges mappings only", path, event.start_mark)
            for key, item in source.items():
                merged.setdefault(key, item)

    def _refuse_tag(self, tag: str, event: Any, path: Path) -> NoReturn:
        _refuse("tag_refused", f"the tag {show(tag)} is refused; write a plain value", path, event.start_mark)


def _text_if_merge(value: Any) -> Any:
    """Return the text `<<` where it isn't a key."""
    return "<<" if value is _MERGE else value


class _Plain:
    """Copies a tree of plain values, checking each of them."""

    def __init__(self) -> None:
        self._values = 0
        self._characters = 0

    def mapping(self, value: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        """Copy a mapping."""
        if len(path) >= MAX_DEPTH:
            _refuse("too_deep", _TOO_DEEP, path)
        result: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                _refuse("key_not_text", f"the key {show(key)} isn't text; put it in quotes", path)
            self._text(key, path)
            result[key] = self._value(item, (*path, key))
        return result

    def _sequence(self, value: list[Any] | tuple[Any, ...], path: Path) -> list[Any]:
        if len(path) >= MAX_DEPTH:
            _refuse("too_deep", _TOO_DEEP, path)
        return [self._value(item, (*path, index)) for index, item in enumerate(value)]

    def _value(self, value: object, path: Path) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            _refuse("too_large", _TOO_MANY)
        match value:
            case None | bool():
                return value
            case int():
                if value.bit_length() > 1024:
                    _refuse("out_of_range", "the number has more than 300 digits", path)
                return value
            case str():
                return self._text(value, path)
            case float():
                if not math.isfinite(value):
                    _refuse("not_finite", f"{value} is not a finite number", path)
                return value
            case Mapping():
                return self.mapping(value, path)
            case list() | tuple():
                return self._sequence(value, path)
            case _:
                _refuse("wrong_type", f"a {type(value).__name__} is not a plain value", path)

    def _text(self, value: str, path: Path) -> str:
        if _UNSTORABLE.search(value):
            _refuse("invalid_encoding", "the text holds a NUL character or half a surrogate pair", path)
        self._characters += len(value)
        if self._characters > MAX_BYTES:
            _refuse("too_large", f"the document's texts have more than {MAX_BYTES} characters")
        return value
