"""Step quotas of one behavior: how the steps of a round are divided among the collectors of an attempt.

With one collector the quota is the whole round, and the round has exactly its size: it is the same steps in every run
with the same seed. With several collectors each gets a part of the round, in proportion to what it delivered of the
round before. The part of those that serve no simulator goes to the only other one in one step: each extension costs an
edge collector a round trip. A collector that has used its quota gets more as long as the round is not complete, so a
slow, frozen or dead collector never blocks a round. The round is cut as soon as its size has been delivered. Steps of
it that other collectors deliver afterwards count into the next round, with the policy version that acted.

Steps that collectors answer in advance (`ludus.collector.step_quota`, overdraft) count into the round of their tag. A
collector subtracts its own from that round's quota. The successor of a dead collector does
not know the steps that were delivered in advance: the round's quotas are reduced by them.

Where the age of steps is limited and none may be dropped (`ahead`), rounds are not cut: all steps count into the round
of their tag, and a round is complete when every collector has said that it owes nothing more of it. Collectors that
have not used their quotas are asked to end then. So a slow collector delays rounds; one that dies does not.

Pure bookkeeping: the methods return the grants that the pool has to send.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

FEWEST_STEPS = 8
"""An extension of a quota has at least so many steps, if the round lacks as many. So has a report of progress."""
REPORTS = 8
"""Of several collectors each reports its progress so often in a round, at most."""
SMALLEST_PART = 8
"""No collector's quota is smaller than the average divided by this: it may have got simulators since the last round."""
NO_COLLECTOR = -1
"""Stands for collectors that have died and for those of an earlier attempt."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Quota for one collector; the fields are those of the collector's `StepQuota.grant`."""

    collector: int
    round: int
    steps: int
    size: int
    report_every: int = 0
    ahead: int | None = None


class StepQuota:
    """The quotas of one behavior's rounds."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The current round; None before the first grant."""
        self.size = 0
        self._collectors: set[int] = set()
        self._granted: Counter[int] = Counter()
        """Quota of the current round, by collector."""
        self._delivered: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """Delivered steps of the current and later rounds: round of their tag -> collector -> steps."""
        self._counted: Counter[int] = Counter()
        """Delivered steps by the round that they count into."""
        self._progress: Counter[int] = Counter()
        """Steps of the current round that have returned to each collector, as it reported; most are delivered later."""
        self._contributed: Counter[int] = Counter()
        """Steps that each collector delivered since the current round began, whatever their tag is."""
        self._idle: set[int] = set()
        """Collectors that delivered nothing in the round before, while others did: they probably serve no simulator."""
        self._collected: int | None = None
        self._ahead: int | None = None
        """How many rounds later than answered a step may count; None: any number, and rounds are cut at their size."""
        self._finished: set[int] = set()
        """Collectors that owe no step of the current round."""
        self._ended: int | None = None
        """The round that collectors were last asked to end."""

    def add(self, collector: int) -> list[Grant]:
        """Add a collector. During a round it gets a part of the missing steps."""
        self._collectors.add(collector)
        if self.number is None:
            return []
        return [self._grant(collector, max(self._lacking, 0) // len(self._collectors))]

    def remove(self, collector: int) -> int:
        """Remove a collector that has died; return how much of its quota it had not delivered."""
        self._collectors.discard(collector)
        lost = 0
        if self.number is not None:
            lost = max(self._granted.pop(collector, 0) - self._delivered[self.number][collector], 0)
        for delivered in self._delivered.values():
            delivered[NO_COLLECTOR] += delivered.pop(collector, 0)
        self._contributed.pop(collector, None)
        self._progress.pop(collector, None)
        self._finished.discard(collector)
        return lost

    def restore(
        self, number: int, delivered: Iterable[tuple[int, int]], overdraft: Iterable[tuple[int, int, int]]
    ) -> None:
        """Count the steps that an earlier attempt delivered of round `number`, the next one, and of later ones.

        `delivered` is (round, steps). `overdraft` is (collector, round, steps) of later rounds that the collectors
        restore themselves and subtract from their quotas. The rest is known to no collector, like that of a dead one.
        """
        unknown = dict(delivered)
        self._counted.update(unknown)
        for collector, later, steps in overdraft:
            if later > number and steps <= unknown.get(later, 0):
                unknown[later] -= steps
                self._delivered[later][collector] += steps
        for later, steps in unknown.items():
            self._delivered[later][NO_COLLECTOR] += steps

    def grant(self, number: int, steps: int, ahead: int | None = None) -> list[Grant]:
        """Begin a round of `steps` steps. Raises ValueError if it is not later than the current one."""
        if self.number is not None and number <= self.number:
            raise ValueError(f"round {number} was granted after round {self.number}")
        for old in [old for old in self._delivered.keys() | self._counted.keys() if old < number]:
            self._delivered.pop(old, None)
            self._counted.pop(old, None)
        self.number, self.size, self._ahead = number, steps, ahead
        self._granted.clear()
        self._progress.clear()
        weights = self._weights()
        self._idle = {collector for collector, delivered in self._contributed.items() if not delivered}
        if len(self._idle) == len(self._contributed):
            self._idle.clear()
        self._contributed = Counter(dict.fromkeys(self._collectors, 0))
        steps = max(steps - self._delivered[number][NO_COLLECTOR], 0)
        # Differences of rounded partial sums: the quotas are integers and their sum is exactly `steps`.
        total, before, grants = sum(weights.values()), 0.0, []
        for collector, weight in weights.items():
            after = before + weight
            grants.append(self._grant(collector, round(steps * after / total) - round(steps * before / total)))
            before = after
        return grants

    def progress(self, collector: int, number: int, steps: int, *, used: bool) -> list[Grant]:
        """Record progress; extend the quota of a collector that has delivered all of it, if the round lacks steps.

        Steps that others have, but have not delivered, are not collected again, except a few at a time: a collector
        that is frozen may never deliver them.
        """
        if used and number == self.number:
            self._finished.add(collector)
        if number != self.number or self._lacking <= 0:
            return []
        self._progress[collector] = steps
        if not used:
            return []
        extension = self._lacking
        busy = [index for index in self._collectors if index not in self._idle or self._progress[index]]
        if len(busy) > 1:
            # Steps that have returned to collectors and are not delivered yet will come without another grant.
            delivered = self._delivered[number]
            coming = sum(max(count - delivered[index], 0) for index, count in self._progress.items())
            extension = max((self._lacking - coming) // (2 * len(busy)), min(self._lacking, FEWEST_STEPS))
        return [self._grant(collector, extension)]

    def delivered(self, collector: int, tag: int, steps: int) -> int:
        """Count steps that arrived with the tag of a round; return the round that they count into."""
        self._contributed[collector] += steps
        number = tag
        if self.number is not None:
            number = max(tag, self.number)
            # Rounds are cut at their size: later steps count into the next one.
            while self._ahead is None and self._counted[number] >= self.size:
                number += 1
            if tag >= self.number:
                self._delivered[tag][collector] += steps
        self._counted[number] += steps
        return number

    def collected(self) -> tuple[int, int] | None:
        """Return (round, steps) once, when the current round is complete."""
        if self.number is None or self.number == self._collected or self._lacking > 0:
            return None
        if self._ahead is not None and self._granted.keys() - self._finished:
            return None
        self._collected = self.number
        return self.number, self._counted[self.number]

    def to_end(self) -> list[int]:
        """Return once, when the current round has its steps, the collectors that have not used their quota of it."""
        if self.number is None or self.number == self._ended or self._lacking > 0:
            return []
        self._ended = self.number
        return self.unused if self._ahead is None else sorted(self._granted.keys() - self._finished)

    @property
    def unused(self) -> list[int]:
        """Collectors that have not delivered their quota of the current round."""
        assert self.number is not None
        delivered = self._delivered[self.number]
        return [collector for collector, steps in self._granted.items() if steps > delivered[collector]]

    @property
    def _lacking(self) -> int:
        """Steps that the current round still needs."""
        assert self.number is not None
        return self.size - self._counted[self.number]

    def _grant(self, collector: int, steps: int) -> Grant:
        assert self.number is not None
        self._granted[collector] += steps
        self._finished.discard(collector)
        size = -(-self.size // len(self._collectors))
        return Grant(
            collector,
            self.number,
            steps,
            size,
            report_every=0 if len(self._collectors) == 1 else max(size // REPORTS, FEWEST_STEPS),
            ahead=self._ahead,
        )

    def _weights(self) -> dict[int, float]:
        """Return how the next round is divided: by what each collector delivered last, a new one like the average."""
        contributions = [self._contributed[collector] for collector in self._collectors & self._contributed.keys()]
        average = sum(contributions) / len(contributions) if any(contributions) else 1.0
        return {
            collector: max(float(self._contributed.get(collector, average)), average / SMALLEST_PART)
            for collector in sorted(self._collectors)
        }
