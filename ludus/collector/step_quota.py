"""Step quota of one behavior in one collector: the round that each answered decision counts into.

A round is a number of steps that share an update. The learner grants each collector a quota of the round's steps
(`worker.collectors.step_quota`). The collector answers that many decisions, then holds its agents, and tags each answer
with its round. With one collector the quota is the whole round, so every round has exactly its size. The rules:

- **A message is answered whole.** A game that asked for 12 actions usually can't continue with 4 of them, so a partial
  answer would block the round. Decisions beyond the quota are an *overdraft*: they count into the next rounds, whose
  quotas they reduce.
- **No message of a simulator that owes a step of this round is held**, for any of its agents, teams or behaviors. The
  game may be unable to return that step before they have acted. Their answers are overdraft.
- **Lost steps** (their simulator left) are refunded, and other agents are answered instead.
- **Late agents**: a step that is answered but does not return for a while can be moved to a later round, which frees
  its place in this one (`release`).

Where the age of steps is limited and none may be dropped (`hyperparameters.late_steps: wait`), a step counts into a
round that is at most `ahead` rounds after the one in which it is answered, which may make that round larger than its
quota. A round that the learner ends is complete only when all of its steps have returned.
"""

from collections import Counter


class StepQuota:
    """Quota, outstanding answers and overdraft of one behavior in one collector."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The current round; None before the first grant."""
        self.left = 0
        """Decisions that may still be answered in it. Below 0 if the overdraft was larger than the quota."""
        self.ended = False
        """Whether the learner has ended the round, because other collectors completed it."""
        self.size = 0
        """Steps of a later round that may be answered in advance: the usual quota of this collector."""
        self.progress = 0
        """Steps of the current round that have returned since it began."""
        self.ahead: int | None = None
        """How many rounds later an answer may count, at least 1; None: any number."""
        self.report_every = 0
        """Progress is reported to the learner in steps of this size; 0 = it is not reported."""
        self.reported: int | None = 0
        """Progress that was reported last; None once it was reported that the quota is used."""
        self.outstanding: Counter[int] = Counter()
        """Answered decisions whose step has not returned, by round."""
        self.overdraft: Counter[int] = Counter()
        """Steps that were answered in advance, by the later round that they count into."""

    def grant(self, number: int, steps: int, *, size: int, report_every: int = 0, ahead: int | None = None) -> None:
        """Extend the quota of the current round, or begin the next one, whose quota is reduced by its overdraft."""
        if self.number is not None and number < self.number:
            return  # the round is over
        if number != self.number:
            self.left = -self.overdraft.pop(number, 0)
            self.number, self.ended, self.progress = number, False, 0
        self.size, self.report_every, self.ahead = size, report_every, ahead
        self.left += steps
        self.reported = self.progress

    def end(self, number: int) -> None:
        """End the current round: no more of it is answered. Steps that are outstanding return and are delivered."""
        if number == self.number:
            self.ended = True
            self.left = min(self.left, 0)

    def take(self, decisions: int) -> list[tuple[int, int]]:
        """Tag `decisions` answers: (round, how many) in order. The part that exceeds the quota is overdraft."""
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
        """Take from the quotas of the next rounds that have room: (round, how many) in order."""
        assert self.number is not None
        tags: list[tuple[int, int]] = []
        later = self.number
        while rest:
            later += 1
            is_last = self.ahead is not None and later - self.number == self.ahead
            room = max(self.size - self.overdraft[later], 0) if self.size and not is_last else rest
            if taken := min(rest, room):
                self.overdraft[later] += taken
                tags.append((later, taken))
                rest -= taken
        return tags

    def returned(self, number: int, steps: int) -> None:
        """Record that answered steps of a round returned."""
        self.outstanding[number] -= steps
        if not self.outstanding[number]:
            del self.outstanding[number]
        if number == self.number:
            self.progress += steps

    def take_report(self) -> tuple[int, bool] | None:
        """Return (progress, whether the quota is used) if a report is due now. Call it after a delivery."""
        if self.number is None or self.is_cut or self.reported is None:
            return None
        if self.complete:
            self.reported = None
            return self.progress, True
        if self.report_every and self.progress - self.reported >= self.report_every:
            self.reported = self.progress
            return self.progress, False
        return None

    def refund(self, number: int, steps: int) -> None:
        """Grant again steps that were answered (and have returned, or never will) but are lost to the round."""
        if number == self.number:
            self.progress -= steps
            self.left += 0 if self.ended else steps
        elif number in self.overdraft:
            self.overdraft[number] -= steps

    def release(self, steps: int) -> list[tuple[int, int]]:
        """Move outstanding answers of this round to later ones with room: (round, how many) in order."""
        assert self.number is not None
        self.returned(self.number, steps)
        self.refund(self.number, steps)
        tags = self._take_later(steps)
        for number, count in tags:
            self.outstanding[number] += count
        return tags

    def take_restored(self, number: int, steps: int) -> bool:
        """Count steps that were answered in an earlier attempt; False if their round is over or has no room."""
        if self.number is None or number < self.number or (number == self.number and self.left < steps):
            return False
        if number == self.number:
            self.left -= steps
        else:
            self.overdraft[number] += steps
        return True

    @property
    def complete(self) -> bool:
        """Whether nothing of the round is left to do here: it has ended, or the quota is used and all has returned."""
        if self.number is None:
            return False
        return self.is_cut or (self.left <= 0 and not self.outstanding[self.number])

    @property
    def is_cut(self) -> bool:
        """Whether the learner has ended the round and waits for nothing more of it."""
        return self.ended and self.ahead is None
