"""Rounds of one collector have exactly their size; those of several have at least it, and are never blocked."""

from collections import Counter, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ludus.collector import step_quota
from tests.examples import examples
from worker.collectors.step_quota import Grant, StepQuota

SIZE = 200
MESSAGE = 30


def quota_of(collectors: int, size: int = 0) -> StepQuota:
    """Return the quota of some collectors; with a size, its first round is granted."""
    quota = StepQuota()
    for collector in range(collectors):
        quota.add(collector)
    if size:
        quota.grant(0, size)
    return quota


def steps(grants: list[Grant]) -> dict[int, int]:
    return {grant.collector: grant.steps for grant in grants}


def test_a_single_collector_gets_the_whole_round() -> None:
    assert quota_of(1).grant(0, 500) == [Grant(0, 0, 500, size=500)]


def test_several_collectors_divide_the_first_round_equally() -> None:
    assert quota_of(3).grant(0, 100) == [Grant(0, 0, 33, 34, 8), Grant(1, 0, 34, 34, 8), Grant(2, 0, 33, 34, 8)]


def test_later_rounds_are_divided_by_what_each_delivered_of_the_round_before() -> None:
    quota = quota_of(2, 100)
    quota.delivered(0, 0, 75)
    quota.delivered(1, 0, 25)

    assert steps(quota.grant(1, 1000)) == {0: 750, 1: 250}


def test_a_collector_that_delivered_nothing_still_gets_a_small_part() -> None:
    quota = quota_of(2, 100)
    quota.delivered(0, 0, 100)

    assert steps(quota.grant(1, 100)) == {0: 94, 1: 6}  # weights 100 and 50 / 8


def test_a_collector_that_used_its_quota_gets_more_while_the_round_lacks_steps() -> None:
    quota = quota_of(2, 400)
    quota.delivered(0, 0, 200)

    assert steps(quota.progress(0, 0, 200, used=True)) == {0: 50}  # a quarter of the 200 that are not delivered
    quota.delivered(1, 0, 195)
    assert steps(quota.progress(0, 0, 200, used=True)) == {0: 5}
    quota.delivered(0, 0, 5)
    assert quota.progress(0, 0, 205, used=True) == []


def test_steps_that_another_collector_has_and_has_not_delivered_are_not_collected_again_but_a_few_at_a_time() -> None:
    quota = quota_of(2, 400)
    quota.delivered(0, 0, 200)
    assert quota.progress(1, 0, 120, used=False) == []

    assert steps(quota.progress(0, 0, 200, used=True)) == {0: 20}  # a quarter of 80
    quota.progress(1, 0, 200, used=False)
    assert steps(quota.progress(0, 0, 220, used=True)) == {0: 8}


def test_what_collectors_without_simulators_do_not_use_goes_to_the_only_other_one_in_one_grant() -> None:
    quota = quota_of(3, 1000)
    quota.delivered(1, 0, 1000)
    granted = steps(quota.grant(1, 1000))
    quota.delivered(1, 1, granted[1])

    (extension,) = quota.progress(1, 1, granted[1], used=True)

    assert extension.steps == 1000 - granted[1] > 16, "all that the round lacks"


def test_a_round_is_cut_at_its_size_and_what_comes_later_counts_into_the_next_one() -> None:
    quota = quota_of(2, 100)
    assert quota.delivered(0, 0, 50) == 0
    assert quota.delivered(1, 0, 49) == 0
    assert quota.collected() is None

    assert quota.delivered(0, 0, 5) == 0
    assert quota.collected() == (0, 104)

    assert quota.delivered(1, 0, 7) == 1
    assert quota.unused == []
    quota.grant(1, 100)
    assert quota.delivered(1, 0, 3) == 1
    assert quota.delivered(0, 1, 90) == 1
    assert quota.collected() == (1, 100)
    assert quota.unused == [1]


def test_steps_in_advance_of_several_collectors_fill_one_round_after_the_other() -> None:
    quota = quota_of(2, 10)

    assert [quota.delivered(0, 1, 6), quota.delivered(1, 1, 6), quota.delivered(1, 1, 6)] == [1, 1, 2]


def test_a_round_is_collected_once() -> None:
    quota = quota_of(1)
    quota.grant(3, 10)
    quota.delivered(0, 3, 9)
    assert quota.collected() is None

    quota.delivered(0, 3, 1)

    assert quota.collected() == (3, 10)
    assert quota.collected() is None


def test_a_single_collector_that_was_started_again_gets_what_the_round_lacks() -> None:
    quota = quota_of(1, 100)
    quota.delivered(0, 0, 30)

    assert quota.remove(0) == 70
    assert steps(quota.add(0)) == {0: 70}


def test_steps_that_a_dead_collector_delivered_in_advance_reduce_their_round() -> None:
    quota = quota_of(1, 100)
    quota.delivered(0, 0, 30)
    quota.delivered(0, 1, 4)
    quota.remove(0)
    quota.add(0)

    assert steps(quota.grant(1, 100)) == {0: 96}


class QuotaMachine(RuleBasedStateMachine):
    """Collectors whose messages are under way for any time, and that answer in advance; some freeze, some die."""

    ahead: int | None = None

    @initialize(collectors=st.integers(1, 3), size=st.sampled_from([1, 2, 7, SIZE]))
    def begin(self, collectors: int, size: int) -> None:
        self.size = size
        self.quota = StepQuota()
        self.collectors = [step_quota.StepQuota() for _ in range(collectors)]
        self.inbox: list[deque[Grant | int]] = [deque() for _ in range(collectors)]
        """Grants, and numbers of rounds that end."""
        self.outbox: list[deque[tuple[str, int, int]]] = [deque() for _ in range(collectors)]
        self.frozen = [False] * collectors
        self.delivered = Counter[int]()
        self.died = False
        self.collected: tuple[int, int] | None = None
        self.number = 0
        for index in range(collectors):
            self.quota.add(index)
        self.send(self.quota.grant(0, size, self.ahead))

    def send(self, grants: list[Grant]) -> None:
        for grant in grants:
            self.inbox[grant.collector].append(grant)

    def collector(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.collectors) - 1))

    @rule(data=st.data(), decisions=st.integers(1, MESSAGE))
    def answer(self, data: st.DataObject, decisions: int) -> None:
        self.act(self.collector(data), decisions)

    def act(self, index: int, decisions: int) -> None:
        """Answer a message whole, if a part of it is in the quota."""
        quota = self.collectors[index]
        if quota.number is not None and quota.left > 0 and not quota.ended:
            quota.take(decisions)

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        self.bring_back(self.collector(data))

    def bring_back(self, index: int) -> None:
        quota = self.collectors[index]
        for number, out in list(quota.outstanding.items()):
            quota.returned(number, out)
            self.outbox[index].append(("delivered", number, out))
        report = quota.take_report()
        if quota.number is not None and report is not None:
            self.outbox[index].append(("used" if report[1] else "progress", quota.number, report[0]))

    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        self.listen(self.collector(data))

    def listen(self, index: int) -> None:
        if not self.inbox[index]:
            return
        message = self.inbox[index].popleft()
        if isinstance(message, Grant):
            self.collectors[index].grant(
                message.round,
                message.steps,
                size=message.size,
                report_every=message.report_every,
                ahead=message.ahead,
            )
        else:
            self.collectors[index].end(message)

    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        self.tell(self.collector(data))

    def tell(self, index: int) -> None:
        if not self.outbox[index]:
            return
        kind, number, count = self.outbox[index].popleft()
        if kind != "delivered":
            self.send(self.quota.progress(index, number, count, used=kind == "used"))
        else:
            # Segments of one step: what a segment is too long for a round does not matter here.
            for _ in range(count):
                self.delivered[self.quota.delivered(index, number, 1)] += 1
        self.note_collected()

    def note_collected(self) -> None:
        for index in self.quota.to_end():
            self.inbox[index].append(self.number)
        collected = self.quota.collected()
        if collected is not None:
            self.collected = collected

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        index = self.collector(data)
        self.died = True
        self.collectors[index] = step_quota.StepQuota()
        self.frozen[index] = False
        self.inbox[index].clear()
        self.outbox[index].clear()
        self.quota.remove(index)
        self.send(self.quota.add(index))

    @precondition(lambda self: self.collected is None)
    @rule(data=st.data())
    def freeze(self, data: st.DataObject) -> None:
        """A collector does nothing for the rest of the round. One always goes on."""
        index = self.collector(data)
        if self.frozen.count(False) > 1:
            self.frozen[index] = True

    @precondition(lambda self: self.collected is not None)
    @rule()
    def next_round(self) -> None:
        self.finish()

    @rule(decisions=st.integers(1, MESSAGE))
    def whole_round(self, decisions: int) -> None:
        self.play_on(decisions)
        self.finish()

    def play_on(self, decisions: int) -> None:
        """Continue until the round is complete; those that are frozen do nothing."""
        for _ in range(400):
            self.note_collected()
            if self.collected is not None:
                break
            for index in range(len(self.collectors)):
                if not self.frozen[index]:
                    self.listen(index)
                    self.act(index, decisions)
                    self.bring_back(index)
                    self.tell(index)
        assert self.collected == (self.number, self.delivered[self.number])

    @invariant()
    def rounds_are_cut_at_their_size(self) -> None:
        if hasattr(self, "delivered"):
            assert all(count <= self.size for count in self.delivered.values())

    def finish(self) -> None:
        assert self.delivered[self.number] == self.size
        self.collected = None
        self.number += 1
        self.frozen = [False] * len(self.frozen)
        self.send(self.quota.grant(self.number, self.size, self.ahead))

    @invariant()
    def a_single_collector_is_granted_exactly_the_round(self) -> None:
        if hasattr(self, "delivered") and len(self.collectors) == 1 and not self.died:
            quota = self.collectors[0]
            assert quota.number is None or quota.left <= self.size
            assert sum(self.quota._granted.values()) == self.size

    def teardown(self) -> None:
        """Whatever happened, the round completes as long as one collector goes on."""
        if hasattr(self, "quota"):
            self.play_on(MESSAGE)


class WaitingMachine(QuotaMachine):
    """The same where the age of steps is limited and none may be dropped: what is out is waited for."""

    ahead = 1

    def tell(self, index: int) -> None:
        if self.outbox[index] and self.outbox[index][0][0] == "delivered":
            _, number, steps = self.outbox[index][0]
            before = self.delivered[number]
            super().tell(index)
            assert self.delivered[number] == before + steps, "steps count into the round of their tag"
        else:
            super().tell(index)

    def note_collected(self) -> None:
        super().note_collected()
        if self.collected is not None:
            assert not [quota for quota in self.collectors if quota.outstanding[self.number]], "nothing of it is out"
            late = [number for box in self.outbox for kind, number, _ in box if kind == "delivered"]
            assert all(number > self.number for number in late), "or on its way"

    def play_on(self, decisions: int) -> None:
        self.frozen = [False] * len(self.frozen)  # who is frozen is killed in the end, or goes on
        super().play_on(decisions)

    def finish(self) -> None:
        assert self.delivered[self.number] >= self.size
        self.collected = None
        self.number += 1
        self.frozen = [False] * len(self.frozen)
        self.send(self.quota.grant(self.number, self.size, self.ahead))

    @invariant()
    def rounds_are_cut_at_their_size(self) -> None:
        if hasattr(self, "collectors"):
            tags = [number for quota in self.collectors for number in quota.outstanding]
            assert all(number <= self.number + self.ahead for number in tags), "no step is for a later round"

    @invariant()
    def a_single_collector_is_granted_exactly_the_round(self) -> None:
        """Not here: it is told to end, and steps that it lost are those of others."""


QuotaMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestQuotaMachine = QuotaMachine.TestCase
WaitingMachine.TestCase.settings = QuotaMachine.TestCase.settings
TestWaitingMachine = WaitingMachine.TestCase
