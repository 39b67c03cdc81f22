"""One number of a metric for each run, as lists of runs show it and sort by it: `[BEHAVIOR:]KEY[@last|max|min]`."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from ludus.metric_keys import full_key

_FORM = re.compile(r"(?:(?P<behavior>[^:@]+):)?(?P<key>[^:@]+)(?:@(?P<which>last|max|min))?")


@dataclass(frozen=True)
class ListedMetric:
    """The number to show: the newest, the highest or the lowest of a key.

    Where several behaviors of a run have the key and none is named, the highest of theirs counts (with `min` the
    lowest).
    """

    text: str
    """As it was asked for."""
    behavior: str | None
    key: str
    which: str
    """`last`, `max` or `min`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what was asked for. Raises ValueError."""
        match = _FORM.fullmatch(text)
        if match is None or not text.isprintable():
            raise ValueError(f"{text!r} is not a metric; write [BEHAVIOR:]KEY, with @max or @min for the extremes")
        return cls(text, match["behavior"], full_key(match["key"]), match["which"] or "last")

    @property
    def choose(self) -> Callable[[float, float], float]:
        """Whether the number of one behavior goes before that of another."""
        return min if self.which == "min" else max
