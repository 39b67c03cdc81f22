"""Which slots are lent: those that a run whose game waits would really get, and no more than there are such runs."""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from server.kit.scheduling import SchedulingSettings
from server.runs.scheduling.demand import Offer, Slot
from server.runs.scheduling.lending import Lender, idle_takes, lendings
from server.runs.scheduling.order import Account, InTraining, Waiting, in_order
from tests.server.runs.scheduling.test_order import NOW, waiting


def lent(
    queue: Sequence[Waiting],
    *lenders: Lender,
    trained: Sequence[Account] = (),
    idle: Sequence[Offer] = (),
    busy: Sequence[Offer] = (),
    policy: SchedulingSettings | None = None,
    trusts: bool = True,
) -> dict[str, str]:
    """Return the runs that lend their slots, and those that get them; `trained` are beside the lenders, and `trusts`
    says whether the idle slots are.
    """
    slots = Counter(Slot(lender.offer, idle=False) for lender in lenders)
    slots.update(Slot(offer, idle=True) for offer in idle)
    slots.update(Slot(offer, idle=False) for offer in busy)
    running = InTraining(Counter([*trained, *(lender.run.account for lender in lenders)]))
    state = (slots, running, policy or SchedulingSettings(), NOW)
    takes = idle_takes(queue, *state) if trusts else []
    pairs = lendings(queue, lenders, *state, takes)
    return {lender.run.run_id: run.run_id for lender, run in pairs}


def lender(
    run_id: str, *, offer: Offer | None = None, asked: bool = False, waited: float = 100, project: str = "default"
) -> Lender:
    return Lender(waiting(run_id, waited=waited, project=project), offer or Offer(), asked)


GAME = waiting("game", ready=True)


def test_the_run_that_has_been_without_a_game_for_longest_lends_its_slot_once_for_each_game_that_waits() -> None:
    assert lent([GAME], lender("a"), lender("b")) == {"a": "game"}
    two = [waiting("another", ready=True, waited=1), GAME]
    assert lent(two, lender("a"), lender("b"), lender("c")) == {"a": "another", "b": "game"}
    assert lent([GAME], lender("a"), lender("b", asked=True)) == {}, "a slot is on its way"
    assert lent([waiting("c")], lender("a")) == {}, "no game waits"


def test_no_slot_is_lent_that_another_run_would_take() -> None:
    urgent = waiting("urgent", priority=5)

    assert lent([GAME, urgent], lender("a")) == {}
    assert lent([GAME, waiting("patient", waited=4000)], lender("a")) == {}
    assert lent([GAME], lender("a", waited=4000)) == {}, "the lender itself"
    assert lent([GAME], lender("a", project="other"), trained=[GAME.account]) == {}, "the share of the other project"
    assert lent([GAME], lender("a", project="other")) == {"a": "game"}


def test_no_slot_is_lent_that_does_not_serve_the_run_or_leaves_it_to_another() -> None:
    on_gpu = waiting("game", demand="1;", ready=True)

    assert lent([on_gpu], lender("a"), lender("b", offer=Offer(1))) == {"b": "game"}
    assert lent([GAME], lender("a", offer=Offer(cordoned=True))) == {}
    assert lent([GAME], lender("a", offer=Offer(1)), busy=[Offer()]) == {}, "the last slot with a GPU would be kept"
    assert lent([GAME], lender("a", offer=Offer(1)), busy=[Offer(1)]) == {"a": "game"}, "no other slot serves it"


def test_no_slot_is_lent_to_a_run_that_an_idle_slot_takes() -> None:
    assert lent([GAME], lender("a"), idle=[Offer()]) == {}
    assert lent([GAME], lender("a"), idle=[Offer(cordoned=True)]) == {"a": "game"}
    kept = lent([GAME], lender("a"), idle=[Offer(1)])
    assert kept == {"a": "game"}, "the last idle slot with a GPU leaves it to this one"


def test_a_run_that_is_ready_and_the_head_of_its_group_is_lent_one_slot_and_keeps_none_from_others() -> None:
    old = waiting("old", ready=True, waited=9000)
    queue = [old, waiting("young", ready=True, waited=10), waiting("old", waited=9000)]

    assert lent(queue, lender("a"), lender("b")) == {"a": "old", "b": "young"}


def test_each_idle_slot_takes_one_run_the_one_whose_turn_it_is() -> None:
    two = [GAME, waiting("another", ready=True, waited=10)]
    urgent = waiting("urgent", priority=5)

    assert lent(two, lender("a"), lender("b"), idle=[Offer()]) == {"a": "game"}, "the other one has waited longer"
    assert lent(two, lender("a"), lender("b"), idle=[Offer(), Offer()]) == {}
    assert lent([GAME, urgent], lender("a"), idle=[Offer()]) == {"a": "game"}, "the idle slot takes the urgent run"


def test_a_run_that_an_idle_slot_takes_counts_for_quotas() -> None:
    policy = SchedulingSettings(runs_per_project=2)

    other = [GAME, waiting("another", ready=True, waited=10)]
    assert lent(other, lender("a", project="other"), trained=[GAME.account], idle=[Offer()], policy=policy) == {}


def test_an_idle_slot_that_is_not_trusted_keeps_no_slot_from_being_lent() -> None:
    assert lent([GAME], lender("a"), idle=[Offer()], trusts=False) == {"a": "game"}
    left = lent([GAME], lender("a", offer=Offer(1)), idle=[Offer()], trusts=False)
    assert left == {}, "the slot with a GPU would leave it to the idle one"


def test_a_quota_that_the_lender_uses_up_itself_is_free_for_the_other_run() -> None:
    policy = SchedulingSettings(runs_per_project=1)

    assert lent([GAME], lender("a"), idle=[Offer()], policy=policy) == {"a": "game"}
    assert lent([GAME], lender("a", project="other"), trained=[GAME.account], policy=policy) == {}


RUNS = st.tuples(st.sampled_from("pq"), st.integers(0, 2), st.floats(0, 10_000), st.sampled_from(["", "1;"]))


@given(
    st.lists(RUNS, max_size=5), st.lists(RUNS, max_size=5), st.lists(RUNS, max_size=5), st.sampled_from([None, 1, 2])
)
def test_each_slot_that_is_lent_takes_that_very_run_and_none_lends_twice(
    with_game: list[tuple[str, int, float, str]],
    without: list[tuple[str, int, float, str]],
    lending: list[tuple[str, int, float, str]],
    quota: int | None,
) -> None:
    def runs(kind: str, drawn: list[tuple[str, int, float, str]], *, ready: bool) -> list[Waiting]:
        return [
            waiting(f"{kind}{number}", project=project, priority=priority, waited=waited, demand=demand, ready=ready)
            for number, (project, priority, waited, demand) in enumerate(drawn)
        ]

    policy = SchedulingSettings(runs_per_project=quota)
    queue = [*runs("ready", with_game, ready=True), *runs("without", without, ready=False)]
    lenders = [Lender(run, Offer(1)) for run in runs("lender", lending, ready=False)]
    running = InTraining(Counter(one.run.account for one in lenders))

    pairs = lendings(queue, lenders, Counter({Slot(Offer(1), idle=False): len(lenders)}), running, policy, NOW)

    for lends, gets in pairs:
        queue.append(lends.run)
        assert in_order(queue, running.after(lends.run.account), lends.offer, policy, NOW)[0] == gets
        queue.remove(gets)
        running = running.after(lends.run.account, gets.account)
    assert all(gets.ready for _, gets in pairs)
    assert len({lends.run.run_id for lends, _ in pairs}) == len(pairs)
