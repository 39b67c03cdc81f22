"""Several collectors share a round: together they deliver exactly its size."""

from collections import Counter, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ludus.collector.rounds import Rounds
from worker.collectors.sharing import Grant, Order, Recall, RoundSharing

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


def test_what_was_answered_in_advance_is_the_first_that_is_permitted() -> None:
    sharing = RoundSharing()
    sharing.add(0)
    sharing.add(1)
    sharing.grant(0, 10)
    sharing.borrowed(0, 1, 4)
    sharing.borrowed(1, 1, 6)
    sharing.borrowed(1, 1, -1)  # lost with its simulator

    orders = sharing.grant(1, 10)

    # 1 is left, and in round 1 it is collector 1's turn.
    assert orders == [Grant(1, 1, 6, 10, closed=False), Grant(0, 1, 4, 10, closed=False)]
    assert sharing.remaining == 0


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
        self.waiting = [0] * collectors
        """Size of the message that each could not answer yet."""
        self.delivered = Counter[int]()
        self.excess = Counter[int]()
        """What dead collectors had delivered in advance: their successors don't know, and may borrow the same again."""
        self.collected: tuple[int, int] | None = None
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
        """Answer a message whole: when it is permitted, or when no more will come and some of it is."""
        rounds = self.rounds[index]
        if rounds.number != self.number:
            return
        if rounds.left >= steps or (rounds.closed and rounds.left > 0):
            rounds.take(steps)
            self.waiting[index] = 0
            self.outbox[index].extend(("borrowed", number, steps) for number, steps in rounds.take_borrowed())
            return
        self.waiting[index] = steps
        if not rounds.closed and not self.wanted[index]:
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
                spare = max(rounds.left - self.waiting[index], 0) // (2 if rounds.outstanding[order.round] else 1)
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
        self.collected = self.sharing.collected() or self.collected

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        index = self.collector(data)
        for number in range(self.number + 1, self.number + 100):
            self.excess[number] += self.sharing._delivered[number][index]
        self.rounds[index] = Rounds(index, len(self.rounds))
        self.wanted[index] = False
        self.waiting[index] = 0
        self.inbox[index].clear()
        self.outbox[index].clear()
        _, orders = self.sharing.remove(index)
        self.send(orders)
        self.send(self.sharing.add(index))

    @precondition(lambda self: self.collected is not None)
    @rule()
    def next_round(self) -> None:
        self.finish()

    @rule(steps=st.integers(1, 30))
    def whole_round(self, steps: int) -> None:
        self.play_on(steps)
        self.finish()

    def play_on(self, steps: int) -> None:
        """Let everybody go on until the round is complete."""
        for _ in range(400):
            self.collected = self.sharing.collected() or self.collected
            if self.collected is not None:
                break
            for index in range(len(self.rounds)):
                self.listen(index)
                self.act(index, steps)
                self.bring_back(index)
                self.tell(index)
        assert self.collected == (self.number, self.delivered[self.number])

    @invariant()
    def never_more_than_the_round(self) -> None:
        if hasattr(self, "delivered"):
            assert all(steps <= self.size + self.excess[number] for number, steps in self.delivered.items())

    def finish(self) -> None:
        assert self.delivered[self.number] >= self.size
        self.collected = None
        self.number += 1
        self.send(self.sharing.grant(self.number, self.size))

    def teardown(self) -> None:
        """Whatever happened, the round completes when everybody goes on."""
        if not hasattr(self, "sharing"):
            return
        self.play_on(50)


SharingMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestSharingMachine = SharingMachine.TestCase


def test_permits_of_a_collector_that_wanted_more_and_then_lost_its_simulators_go_to_the_others() -> None:
    sharing = RoundSharing()
    sharing.add(0)
    sharing.add(1)
    sharing.grant(0, 64)
    assert sharing.want(1, 0) == [Recall(0, 0)]
    sharing.want(0, 0)
    told = sharing.returned(0, 0, 0)
    assert told == [Grant(0, 0, 0, 64, closed=True), Grant(1, 0, 0, 64, closed=True)]

    orders = sharing.returned(1, 0, 20, idle=True)

    assert orders == [Grant(0, 0, 20, 64, closed=False)]
