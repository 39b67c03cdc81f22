"""Sharing a round among several collectors: the pool's side of one behavior.

A round's steps are handed out in chunks on request, so that a collector with fast simulators does more of it. When
nothing is left and a collector wants more, the others are asked to give back permits that they don't need (`Recall`).
The sum of permits over all collectors is the size of the round at all times, so that the round is collected when every
collector has delivered what it was permitted. With one collector the whole round is one chunk.

What collectors have answered in advance (`Rounds`) they tell before they deliver the rest of the message; it is the
first that they are permitted of that later round. Each borrows only of its own share, so that all together never borrow
more of a round than there is. (A collector that is started again does not know what its predecessor had delivered in
advance, and may borrow as much again: such a round can be larger than its size.)

Pure bookkeeping: the methods return the grants and recalls that the pool has to send.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SMALLEST_CHUNK = 32
NOBODY = -1
"""In place of a collector: one of a former attempt."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Permits for one collector; the fields are those of `Rounds.grant`."""

    collector: int
    round: int
    steps: int
    size: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Recall:
    """Ask a collector to give back permits of a round that it does not need."""

    collector: int
    round: int


Order = Grant | Recall


class RoundSharing:
    """The permits of one behavior's rounds."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.size = 0
        self.remaining = 0
        """Steps of the current round that nobody is permitted to answer yet."""
        self._collectors: set[int] = set()
        self._permits: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        """round -> collector -> steps that it may deliver."""
        self._delivered: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        """round -> collector -> steps it has delivered."""
        self._advance: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        """later round -> collector -> steps that it has answered in advance."""
        self._joined: set[int] = set()
        """Collectors that know about the current round."""
        self._wanting: set[int] = set()
        """Collectors whose agents wait for permits of the current round."""
        self._recalled: set[int] = set()
        """Collectors that have not answered a recall yet."""
        self._searched = False
        """Whether all have been recalled since a permit was last found."""
        self._told: set[int] = set()
        """Waiting collectors that know that nothing is left."""
        self._collected: int | None = None

    def add(self, collector: int) -> list[Order]:
        """Let a collector take part, in the current round already."""
        self._collectors.add(collector)
        return self._first_chunks([collector]) if self.number is not None else []

    def remove(self, collector: int) -> tuple[int, list[Order]]:
        """Take back what a dead collector was permitted and has not delivered; return how much of the round it is."""
        self._collectors.discard(collector)
        self._joined.discard(collector)
        self._wanting.discard(collector)
        self._recalled.discard(collector)
        self._told.discard(collector)
        lost = 0
        if self.number is not None:
            delivered = self._delivered[self.number][collector]
            lost = self._permits[self.number][collector] - delivered
            self._permits[self.number][collector] = delivered
            self.remaining += lost
        for number in [number for number in self._delivered if self.number is None or number > self.number]:
            # What it had delivered in advance stays; nobody else will subtract it from that round's permits.
            self._permits[number][collector] = self._delivered[number][collector]
        for advance in self._advance.values():
            advance.pop(collector, None)
        return lost, self._share()

    def borrowed(self, collector: int, number: int, steps: int) -> None:
        """Note steps of a later round that were answered in advance (or, below 0, that are lost again)."""
        if self.number is None or number > self.number:
            self._advance[number][collector] += steps

    def restore(
        self, number: int, delivered: Iterable[tuple[int, int]], advance: Iterable[tuple[int, int, int]]
    ) -> None:
        """Count what a former attempt has delivered of round `number`, which is granted next, and of later ones.

        `delivered` is (round, steps). `advance` is (collector, round, steps) of later rounds, as the collectors know it
        themselves; what of them no collector knows is nobody's, like that of one that has died.
        """
        nobodys = dict(delivered)
        for collector, later, steps in advance:
            if later > number and steps <= nobodys.get(later, 0):
                nobodys[later] -= steps
                self._delivered[later][collector] += steps
                self._advance[later][collector] += steps
        for later, steps in nobodys.items():
            if steps:
                self._permits[later][NOBODY] += steps
                self._delivered[later][NOBODY] += steps

    def grant(self, number: int, steps: int) -> list[Order]:
        """Begin a round of `steps` steps."""
        if self.number is not None and number <= self.number:
            raise ValueError(f"round {number} was granted after round {self.number}")
        for old in [old for old in self._permits if old < number]:
            del self._permits[old]
            self._delivered.pop(old, None)
        self.number, self.size = number, steps
        self.remaining = steps - sum(self._permits[number].values())
        self._joined.clear()
        self._wanting.clear()
        self._recalled.clear()
        self._told.clear()
        self._searched = False
        # In turn: of a round that is smaller than a chunk the first one gets all.
        turn = number % max(len(self._collectors), 1)
        collectors = sorted(self._collectors)
        return self._first_chunks(collectors[turn:] + collectors[:turn])

    def want(self, collector: int, number: int) -> list[Order]:
        """Serve a collector that has used up its permits."""
        if number != self.number:
            return []
        self._wanting.add(collector)
        self._told.discard(collector)
        return self._share()

    def returned(self, collector: int, number: int, steps: int, *, idle: bool = False) -> list[Order]:
        """Take permits back; from one that is idle its wish for more, too."""
        if number != self.number:
            return []
        self._recalled.discard(collector)
        if idle:
            self._wanting.discard(collector)
            self._told.discard(collector)
        self._permits[number][collector] -= steps
        self.remaining += steps
        return self._share()

    def delivered(self, collector: int, number: int, steps: int) -> None:
        """Note steps that arrived."""
        self._delivered[number][collector] += steps

    def collected(self) -> tuple[int, int] | None:
        """Return (round, steps) once when every step of the current round has arrived."""
        if self.number is None or self.number == self._collected or self.remaining > 0:
            return None
        arrived = sum(self._delivered[self.number].values())
        if arrived < self.size - self.remaining:
            return None
        self._collected = self.number
        return self.number, arrived

    def _first_chunks(self, collectors: Iterable[int]) -> list[Order]:
        assert self.number is not None
        advance: Mapping[int, int] = self._advance.pop(self.number, {})
        self.remaining -= sum(advance.values())
        alone = len(self._collectors) == 1
        chunk = self.remaining if alone else self._chunk()
        orders: list[Order] = []
        for collector in collectors:
            self._joined.add(collector)
            orders.append(self._give(collector, chunk, advance.get(collector, 0), closed=alone))
        return orders

    def _chunk(self) -> int:
        return max(self.remaining // (2 * max(len(self._collectors), 1)), SMALLEST_CHUNK)

    def _give(self, collector: int, steps: int, advance: int = 0, *, closed: bool = False) -> Grant:
        """Permit some of what remains, and what was answered in advance (which remains no longer)."""
        assert self.number is not None
        steps = max(min(steps, self.remaining), 0)
        self.remaining -= steps
        steps += advance
        self._permits[self.number][collector] += steps
        return Grant(collector, self.number, steps, self.size, closed)

    def _share(self) -> list[Order]:
        """Serve those who want, else recall from those who don't, else tell those who want that nothing is left."""
        orders: list[Order] = []
        for collector in sorted(self._wanting):
            if self.remaining > 0:
                orders.append(self._give(collector, self._chunk(), closed=len(self._collectors) == 1))
                self._wanting.discard(collector)
                self._told.discard(collector)
                self._searched = False
        if not self._wanting or self._recalled or self.number is None:
            return orders
        spare = self._joined - self._wanting
        if spare and not self._searched:
            self._searched = True
            self._recalled = set(spare)
            orders.extend(Recall(collector, self.number) for collector in sorted(spare))
        else:
            orders.extend(self._give(collector, 0, closed=True) for collector in sorted(self._wanting - self._told))
            self._told |= self._wanting
        return orders
