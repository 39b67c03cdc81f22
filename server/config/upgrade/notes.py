"""The changes of an upgrade: rewritten and dropped keys, or the reason why the document cannot be read."""

from dataclasses import dataclass, field
from typing import Any

from ludus.config.problems import Path, join_path, show
from server.kit.errors import InvalidConfig, Problem


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Something that is written otherwise now."""

    path: str
    """Where it was in the old document; `*` stands for each behavior."""
    to: str
    """Where it is in the new one."""
    old: Any
    """None where only the place changed."""
    new: Any
    why: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that the new document doesn't have."""

    path: str
    value: Any
    why: str


@dataclass(slots=True)
class Notes:
    """The changes so far; a change that concerns many behaviors alike is listed once.

    The keys of both are their values as text: a hostile document has tens of thousands, with values of any type.
    """

    changes: dict[str, Rewritten] = field(default_factory=dict)
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def moved(self, path: Path, to: Path, why: str = "has its place there now") -> None:
        """Add a change of only the place."""
        self.changed(path, to, None, None, why)

    def changed(self, path: Path, to: Path, old: Any, new: Any, why: str) -> None:
        """Add a rewritten key."""
        change = Rewritten(join_path(path), join_path(to), old, new, why)
        self.changes.setdefault(repr(change), change)

    def drop(self, path: Path, value: Any, why: str) -> None:
        """Add a dropped key."""
        drop = Dropped(join_path(path), value, why)
        self.dropped.setdefault(repr(drop), drop)


def refuse(path: Path, code: str, message: str) -> InvalidConfig:
    """Return the error of one problem."""
    return InvalidConfig([Problem(join_path(path), code, message)])


def mapping_at(value: Any, path: Path) -> dict[str, Any]:
    """Return what has to be a mapping. Raises InvalidConfig that says where it is none."""
    if not isinstance(value, dict):
        raise refuse(path, "wrong_type", f"must be a mapping, but is {show(value)}")
    return value
