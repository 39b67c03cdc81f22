"""Numbers that simulators report, summed up per key between two reports to the learner."""

from collections.abc import Iterable

from ludus.protocol.batches import Aggregation, StatValue

MAX_VALUES = 1_000
"""Values of one histogram that are kept per report."""
MAX_KEYS = 1_000

StatRow = tuple[int, str, int, int, float, float, list[float]]
"""Parameter set, key, aggregation, count, total, last, values."""


class StatSums:
    """Collects `StatValue`s. Keys beyond `MAX_KEYS` per report are dropped."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str, int], StatRow] = {}

    def add(self, stats: Iterable[StatValue], parameter_set: int = 0) -> None:
        """Add reported numbers, and the environment parameters that they belong to."""
        for key, value, aggregation in stats:
            name = (parameter_set, key, int(aggregation))
            row = self._rows.get(name)
            if row is None:
                if len(self._rows) >= MAX_KEYS:
                    continue
                row = (*name, 0, 0.0, 0.0, [])
            _, _, _, count, total, _, values = row
            if aggregation is Aggregation.HISTOGRAM and len(values) < MAX_VALUES:
                values.append(value)
            self._rows[name] = (*name, count + 1, total + value, value, values)

    def take(self) -> list[StatRow]:
        """Return one row per parameter set, key and aggregation, and forget them."""
        rows = list(self._rows.values())
        self._rows.clear()
        return rows
