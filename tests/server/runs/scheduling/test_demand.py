"""Best fit: which slot leaves a run to which other one, and that one of the idle slots takes it."""

from hypothesis import given
from hypothesis import strategies as st

from server.runs.scheduling.demand import Demand, Offer, Slot, fits_better, keeps_last_gpu, leaves

CPU, GPU, FOUR = Offer(), Offer(1), Offer(4)
PLAIN = Demand()
LABELS = st.frozensets(st.sampled_from("ab"))
DEMANDS = st.builds(Demand, st.integers(0, 3), LABELS)
SLOTS = st.lists(st.builds(Slot, st.builds(Offer, st.integers(0, 3), LABELS, st.booleans()), st.booleans()), max_size=6)


def test_a_slot_with_gpus_leaves_a_run_to_an_idle_slot_with_fewer() -> None:
    assert leaves(PLAIN, GPU, [Slot(CPU, idle=True)])
    assert leaves(Demand(1), FOUR, [Slot(GPU, idle=True)])
    assert not leaves(Demand(2), FOUR, [Slot(GPU, idle=True)])
    assert not leaves(PLAIN, GPU, [Slot(GPU, idle=True)])
    assert not leaves(PLAIN, GPU, [Slot(Offer(cordoned=True), idle=True)])


def test_the_last_idle_slot_with_gpus_is_kept_while_a_slot_without_gpus_serves_the_run() -> None:
    assert leaves(PLAIN, GPU, [Slot(CPU, idle=False)])
    assert not leaves(PLAIN, GPU, [Slot(CPU, idle=False), Slot(GPU, idle=True)])
    assert leaves(PLAIN, GPU, [Slot(CPU, idle=False), Slot(Offer(1, cordoned=True), idle=True)])
    assert not leaves(Demand(labels=frozenset("a")), Offer(1, frozenset("a")), [Slot(CPU, idle=False)])
    assert not leaves(Demand(1), GPU, [Slot(CPU, idle=False)])


def test_a_fleet_of_slots_with_gpus_alone_takes_runs_without() -> None:
    assert not leaves(PLAIN, GPU, [])
    assert not leaves(PLAIN, GPU, [Slot(GPU, idle=False), Slot(FOUR, idle=False)])


@given(demand=DEMANDS, slots=SLOTS)
def test_no_slot_with_gpus_takes_a_run_without_while_an_idle_slot_without_gpus_serves_it(
    demand: Demand, slots: list[Slot]
) -> None:
    for place, slot in enumerate(slots):
        others = slots[:place] + slots[place + 1 :]
        plain = any(other.idle and not other.offer.gpus and other.offer.serves(demand) for other in others)
        if slot.offer.gpus and plain:
            assert leaves(demand, slot.offer, others)


@given(demand=DEMANDS, slots=SLOTS)
def test_one_of_the_idle_slots_that_serve_a_run_takes_it_unless_a_busy_one_without_gpus_is_to(
    demand: Demand, slots: list[Slot]
) -> None:
    idle = [place for place, slot in enumerate(slots) if slot.idle and slot.offer.serves(demand)]
    takers = [place for place in idle if not leaves(demand, slots[place].offer, slots[:place] + slots[place + 1 :])]
    busy = any(not slot.idle and not slot.offer.gpus and slot.offer.serves(demand) for slot in slots)

    if idle and not takers:
        assert busy
        assert demand.gpus == 0
        assert sum(slot.idle and slot.offer.gpus > 0 and not slot.offer.cordoned for slot in slots) == 1
    if takers:
        smallest = min(slots[place].offer.gpus for place in idle)
        assert all(slots[place].offer.gpus == smallest for place in takers)


@given(demand=DEMANDS, slots=SLOTS)
def test_a_slot_without_gpus_leaves_nothing(demand: Demand, slots: list[Slot]) -> None:
    assert not fits_better(demand, CPU, slots)
    assert not keeps_last_gpu(demand, CPU, slots)
