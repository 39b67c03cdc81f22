"""Numbers that simulators report, summed up per key between two reports to the learner."""

from collections.abc import Iterable

from ludus.wire.batches import Aggregation, StatValue

MAX_VALUES = 1_000
"""Values of one histogram that are kept per report."""
MAX_KEYS = 1_000

StatRow = tuple[str, int, int, float, float, list[float]]
"""Key, aggregation, count, total, last, values."""


class StatSums:
    """Collects `StatValue`s. Keys beyond `MAX_KEYS` per report are dropped."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], StatRow] = {}

    def add(self, stats: Iterable[StatValue]) -> None:
        """Add reported numbers."""
        for key, value, aggregation in stats:
            name = (key, int(aggregation))
            row = self._rows.get(name)
            if row is None:
                if len(self._rows) >= MAX_KEYS:
                    continue
                row = (key, int(aggregation), 0, 0.0, 0.0, [])
            _, _, count, total, _, values = row
            if aggregation is Aggregation.HISTOGRAM and len(values) < MAX_VALUES:
                values.append(value)
            self._rows[name] = (key, int(aggregation), count + 1, total + value, value, values)

    def take(self) -> list[StatRow]:
        """Return one row per key and aggregation, and forget them."""
        rows = list(self._rows.values())
        self._rows.clear()
        return rows
