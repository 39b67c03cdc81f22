"""Several collectors share a round: together they deliver exactly its size."""

from collections import Counter, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from worker.collector.rounds import Rounds
from worker.collector.sharing import Grant, Order, Recall, RoundSharing

SIZE = 200


def permitted(orders: list[Order]) -> dict[int, int]:
    return {order.collector: order.steps for order in orders if isinstance(order, Grant)}


def test_a_single_collector_gets_the_whole_round_at_once() -> None:
    sharing = RoundSharing()
    sharing.add(0)

    (order,) = sharing.grant(0, 500)

    assert order == Grant(0, 0, 500, size=500, closed=True)


def test_two_collectors_get_chunks_and_more_on_request() -> None:
    sharing = RoundSharing()
    sharing.add(0)
    sharing.add(1)

    # A chunk is 1 / (2 K) of what remains: 400 / 4 = 100 each, then 200 / 4 = 50.
    assert permitted(sharing.grant(0, 400)) == {0: 100, 1: 100}
    assert permitted(sharing.want(0, 0)) == {0: 50}


def test_spare_permits_are_recalled_for_a_collector_that_waits() -> None:
    sharing = RoundSharing()
    sharing.add(0)
    sharing.add(1)
    sharing.grant(0, 64)  # 32 each

    assert sharing.want(0, 0) == [Recall(1, 0)]
    assert permitted(sharing.returned(1, 0, 20)) == {0: 20}


def test_a_collector_is_told_when_nothing_is_left_anywhere() -> None:
    sharing = RoundSharing()
    sharing.add(0)
    sharing.add(1)
    sharing.grant(0, 64)
    sharing.want(0, 0)

    assert sharing.returned(1, 0, 0) == [Grant(0, 0, 0, size=64, closed=True)]


def test_what_a_dead_collector_has_not_delivered_is_granted_to_those_who_wait() -> None:
    sharing = RoundSharing()
    sharing.add(0)
    sharing.add(1)
    sharing.grant(0, 64)
    sharing.delivered(1, 0, 12)
    sharing.want(0, 0)

    lost, orders = sharing.remove(1)

    assert lost == 20
    assert permitted(orders) == {0: 20}


def test_a_collector_that_was_started_again_gets_what_its_predecessor_had_not_delivered() -> None:
    sharing = RoundSharing()
    sharing.add(0)
    sharing.grant(0, 100)
    sharing.delivered(0, 0, 30)
    sharing.remove(0)

    assert permitted(sharing.add(0)) == {0: 70}


def test_steps_that_a_dead_collector_delivered_in_advance_shorten_their_round() -> None:
    sharing = RoundSharing()
    sharing.add(0)
    sharing.grant(0, 100)
    sharing.delivered(0, 0, 30)
    sharing.delivered(0, 1, 4)
    sharing.remove(0)
    sharing.add(0)

    assert permitted(sharing.grant(1, 100)) == {0: 96}


def test_a_round_is_collected_once() -> None:
    sharing = RoundSharing()
    sharing.add(0)
    sharing.grant(3, 10)
    sharing.delivered(0, 3, 9)
    assert sharing.collected() is None

    sharing.delivered(0, 3, 1)

    assert sharing.collected() == (3, 10)
    assert sharing.collected() is None


class SharingMachine(RuleBasedStateMachine):
    """Three collectors whose messages are under way for any time, and that answer in advance; some die."""

    @initialize(collectors=st.integers(1, 3), size=st.sampled_from([1, 2, 7, SIZE]))
    def begin(self, collectors: int, size: int) -> None:
        self.size = size
        self.sharing = RoundSharing()
        self.rounds = [Rounds(index, collectors) for index in range(collectors)]
        self.inbox: list[deque[Order]] = [deque() for _ in range(collectors)]
        self.outbox: list[deque[tuple[str, int, int]]] = [deque() for _ in range(collectors)]
        self.wanted = [False] * collectors
        self.delivered = Counter[int]()
        self.number = 0
        for index in range(collectors):
            self.sharing.add(index)
        self.send(self.sharing.grant(0, size))

    def send(self, orders: list[Order]) -> None:
        for order in orders:
            self.inbox[order.collector].append(order)

    def collector(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.rounds) - 1))

    @rule(data=st.data(), steps=st.integers(1, 30))
    def answer(self, data: st.DataObject, steps: int) -> None:
        self.act(self.collector(data), steps)

    def act(self, index: int, steps: int) -> None:
        """Answer within the permits, or a whole message if no more will come; ask for more when there are none."""
        rounds = self.rounds[index]
        if rounds.number != self.number:
            return
        if rounds.left > 0:
            rounds.take(steps if rounds.closed else min(steps, rounds.left))
            self.outbox[index].extend(("borrowed", number, steps) for number, steps in rounds.take_borrowed())
        elif not rounds.closed and not self.wanted[index]:
            self.wanted[index] = True
            self.outbox[index].append(("want", self.number, 0))

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        self.bring_back(self.collector(data))

    def bring_back(self, index: int) -> None:
        rounds = self.rounds[index]
        for number, out in list(rounds.outstanding.items()):
            rounds.returned(number, out)
            self.outbox[index].append(("delivered", number, out))

    @rule(data=st.data())
    def hear(self, data: st.DataObject) -> None:
        self.listen(self.collector(data))

    def listen(self, index: int) -> None:
        if not self.inbox[index]:
            return
        order = self.inbox[index].popleft()
        rounds = self.rounds[index]
        if isinstance(order, Grant):
            rounds.grant(order.round, order.steps, size=order.size, closed=order.closed)
            self.wanted[index] = False
        else:
            spare = 0
            if order.round == rounds.number:
                spare = max(rounds.left, 0) // (2 if rounds.outstanding[order.round] else 1)
                rounds.left -= spare
            self.outbox[index].append(("returned", order.round, spare))

    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        self.tell(self.collector(data))

    def tell(self, index: int) -> None:
        if not self.outbox[index]:
            return
        what, number, steps = self.outbox[index].popleft()
        if what == "want":
            self.send(self.sharing.want(index, number))
        elif what == "returned":
            self.send(self.sharing.returned(index, number, steps))
        elif what == "borrowed":
            self.sharing.borrowed(index, number, steps)
        else:
            self.sharing.delivered(index, number, steps)
            self.delivered[number] += steps

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        index = self.collector(data)
        self.rounds[index] = Rounds(index, len(self.rounds))
        self.wanted[index] = False
        self.inbox[index].clear()
        self.outbox[index].clear()
        _, orders = self.sharing.remove(index)
        self.send(orders)
        self.send(self.sharing.add(index))

    @precondition(lambda self: self.delivered[self.number] == self.size)
    @rule()
    def next_round(self) -> None:
        self.finish()

    @invariant()
    def never_more_than_the_round(self) -> None:
        assert not hasattr(self, "delivered") or max(self.delivered.values(), default=0) <= self.size

    def finish(self) -> None:
        assert self.sharing.collected() == (self.number, self.size)
        self.number += 1
        self.send(self.sharing.grant(self.number, self.size))

    def teardown(self) -> None:
        """Whatever happened, the round completes when everybody goes on."""
        if not hasattr(self, "sharing"):
            return
        for _ in range(400):
            if self.delivered[self.number] == self.size:
                break
            for index in range(len(self.rounds)):
                self.listen(index)
                self.act(index, 50)
                self.bring_back(index)
                self.tell(index)
        assert self.delivered[self.number] == self.size
        assert self.sharing.collected() == (self.number, self.size)


SharingMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSharingMachine = SharingMachine.TestCase
