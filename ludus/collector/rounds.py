"""Which round an answered decision counts into: the collector's side of one behavior.

A round is a fixed number of steps that share an update. The learner grants steps of a round, the collector answers that
many decisions and no more, and tags each answer with the round that it counts into. What happens at the edges:

- **A message is answered whole.** A game that asked for 12 actions usually can't go on with 4 of them, so answering a
  part would block the round for ever. Decisions beyond the round's last one are *borrowed* from the next round: they
  count there, and the grant of that round is shortened by them. Of several collectors each borrows only of its share.
- **No message of a simulator that still owes a step of this round is held**, whichever agents, teams or behaviors it is
  about. The game may be unable to return that step before they have acted; their answers are borrowed instead.
- **Lost steps** (their simulator left) are refunded and answered by others, so that a round has exactly its size.
- **Stragglers**: a step that is answered but does not come back for a while can be moved to a later round, which frees
  its place in this one (`release`).

With several collectors a round is granted in chunks: `closed` tells whether this collector can expect more of the
round.
"""

from collections import Counter


class Rounds:
    """Permits, outstanding answers and debts of one behavior in one collector."""

    def __init__(self, index: int = 0, count: int = 1) -> None:
        """This is collector `index` of `count`."""
        self._index, self._count = index, count
        self.number: int | None = None
        """The current round; None before the first grant."""
        self.left = 0
        """Decisions that may still be answered in it. Below 0 when more was borrowed than then was granted."""
        self.closed = False
        """Whether nothing more of this round will be granted, unless permits come back from elsewhere."""
        self.recalled = False
        """Whether other collectors lacked permits of this round, so that these were asked back."""
        self.size = 0
        """Steps of a round, over all collectors."""
        self.outstanding: Counter[int] = Counter()
        """Answered decisions whose step has not come back, by round."""
        self.debt: Counter[int] = Counter()
        """Steps that were answered in advance, by the later round that they count into."""
        self._borrowed: Counter[int] = Counter()
        """Changes of `debt` that the learner does not know yet."""

    @property
    def alone(self) -> bool:
        """Whether no other collector takes part."""
        return self._count == 1

    @property
    def lacked_elsewhere(self) -> bool:
        """Whether other collectors may wait for permits of the round.

        They do if ours were recalled. If we wanted some ourselves, and heard that none are left, ours were not asked
        for, but may have become too many since: simulators leave, and what they had is refunded.
        """
        return not self.alone and (self.recalled or self.closed)

    def grant(self, number: int, steps: int, *, size: int, closed: bool) -> None:
        """Accept permits of the current round or begin the next one, whose debt is paid out of its first permits."""
        if self.number is not None and number < self.number:
            return  # permits of a round that has ended
        if number != self.number:
            self.left = -self.debt.pop(number, 0)
            self.number, self.recalled = number, False
        self.size = size
        self.left += steps
        self.closed = closed

    def take(self, decisions: int) -> list[tuple[int, int]]:
        """Tag `decisions` answers: (round, how many) in order. What exceeds the permits is borrowed."""
        assert self.number is not None, "no round was granted"
        tags: list[tuple[int, int]] = []
        now = min(decisions, max(self.left, 0))
        if now:
            self.left -= now
            tags.append((self.number, now))
        tags += self._take_later(decisions - now)
        for number, count in tags:
            self.outstanding[number] += count
        return tags

    def _take_later(self, rest: int) -> list[tuple[int, int]]:
        """Borrow from the next rounds that have room: (round, how many) in order."""
        assert self.number is not None
        tags: list[tuple[int, int]] = []
        later = self.number
        while rest:
            later += 1
            room = max(self._share_of(later) - self.debt[later], 0)
            borrowed = min(rest, room) if self.size else rest
            if borrowed:
                self._borrow(later, borrowed)
                tags.append((later, borrowed))
                rest -= borrowed
        return tags

    def returned(self, number: int, steps: int) -> None:
        """Note that answered steps of a round came back."""
        self.outstanding[number] -= steps
        if not self.outstanding[number]:
            del self.outstanding[number]

    def refund(self, number: int, steps: int) -> None:
        """Permit again what was answered (and has come back, or never will) but is lost to the round."""
        if number == self.number:
            self.left += steps
        elif number in self.debt:
            self._borrow(number, -steps)

    def release(self, steps: int) -> list[tuple[int, int]]:
        """Move outstanding answers of this round to later ones with room: (round, how many) in order."""
        assert self.number is not None
        self.returned(self.number, steps)
        self.left += steps
        tags = self._take_later(steps)
        for number, count in tags:
            self.outstanding[number] += count
        return tags

    def take_over(self, number: int, steps: int) -> bool:
        """Count steps that were answered in a former attempt; False if their round is over, or has no room for them."""
        if self.number is None or number < self.number or (number == self.number and self.left < steps):
            return False
        if number == self.number:
            self.left -= steps
        else:
            self._borrow(number, steps)
        return True

    def take_borrowed(self) -> list[tuple[int, int]]:
        """Return what was borrowed since the last time: (round, steps), below 0 for what was lost. Forget it."""
        if self.alone or not self._borrowed:
            return []  # alone, the learner can do without
        changes = [(number, steps) for number, steps in self._borrowed.items() if steps]
        self._borrowed.clear()
        return changes

    def _borrow(self, number: int, steps: int) -> None:
        self.debt[number] += steps
        if not self.alone:
            self._borrowed[number] += steps

    def _share_of(self, number: int) -> int:
        """Return how much of a later round this collector may borrow: its part, odd ones in turn."""
        before = number * self.size
        return (before + self.size - 1 - self._index) // self._count - (before - 1 - self._index) // self._count

    @property
    def drained(self) -> bool:
        """Whether this collector has nothing more to do for the round: no permits, and no step still out."""
        return self.number is not None and self.closed and self.left <= 0 and not self.outstanding[self.number]
