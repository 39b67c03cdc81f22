"""Numbers that simulators report, summed up per key between two reports to the learner."""

from collections.abc import Iterable

from ludus.collector.messages import StatsReported
from ludus.protocol.batches import Aggregation, StatValue

MAX_VALUES = 1_000
"""Values of one histogram that are kept per report."""
MAX_KEYS = 4_000


class StatSums:
    """Collects `StatValue`s. Keys beyond `MAX_KEYS` per report are dropped."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str, Aggregation], tuple[int, float, float, list[float]]] = {}
        """Parameter set, key, aggregation -> count, total, last, values."""

    def add(self, stats: Iterable[StatValue], parameter_set: int = 0) -> bool:
        """Add reported numbers, and the number of the environment parameters that they belong to; whether all fit."""
        all_fit = True
        for key, value, aggregation in stats:
            name = (parameter_set, key, aggregation)
            row = self._rows.get(name)
            if row is None and len(self._rows) >= MAX_KEYS:
                all_fit = False
                continue
            count, total, _, values = (0, 0.0, 0.0, []) if row is None else row
            if aggregation is Aggregation.HISTOGRAM and len(values) < MAX_VALUES:
                values.append(value)
            self._rows[name] = (count + 1, total + value, value, values)
        return all_fit

    def take(self) -> tuple[StatsReported, ...]:
        """Return one entry per parameter set, key and aggregation, and forget them."""
        rows, self._rows = self._rows, {}
        return tuple(
            StatsReported(key, aggregation, count, total, last, tuple(values), parameter_set)
            for (parameter_set, key, aggregation), (count, total, last, values) in rows.items()
        )
