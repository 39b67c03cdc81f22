"""Lending: which slots go from runs without games to runs that are ready to train. Pure: no database, no clock.

A slot is lent only where the other run would get it: it is the first in the order in which that slot takes runs, beside
the one that gives the slot back and waits again. Slots that are idle, or given back already, serve their share first,
one run each.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from server.kit.scheduling import SchedulingSettings
from server.runs.scheduling.demand import Demand, Offer, Slot, leaves, occupy, others_than
from server.runs.scheduling.order import InTraining, Waiting, in_order


@dataclass(frozen=True)
class Lender:
    """A run that holds a slot and has nothing to lose."""

    run: Waiting
    """As it is going to wait again."""
    offer: Offer
    """Of its slot."""
    asked: bool = False
    """Whether it has been asked for the slot already."""


def idle_takes(
    waiting: Iterable[Waiting],
    slots: Mapping[Slot, int],
    running: InTraining,
    policy: SchedulingSettings,
    now: float,
) -> list[tuple[Slot, Waiting]]:
    """Return the idle slots that take a run now, the smallest ones first, each with its run. Arguments: `lendings`."""
    queue, present, takes = list(waiting), Counter(slots), []
    idle = (slot for slot in slots if slot.idle)
    for slot in sorted(idle, key=lambda slot: (slot.offer.gpus, len(slot.offer.labels))):
        while present[slot] and any(run.ready for run in queue):
            order = _order(queue, running, slot, present, policy, now)
            if not order:
                break
            takes.append((slot, order[0]))
            queue = _without(queue, order[0])
            running = running.after(begin=order[0].account)
            occupy(present, slot)
    return takes


def lendings(
    waiting: Iterable[Waiting],
    lenders: Iterable[Lender],
    slots: Mapping[Slot, int],
    running: InTraining,
    policy: SchedulingSettings,
    now: float,
    takes: Iterable[tuple[Slot, Waiting]] = (),
) -> list[tuple[Lender, Waiting]]:
    """Return the slots that are to be lent, in the order of the lenders, each with the run that gets it.

    `waiting` are all runs that are ready, and the heads of all groups; a run that is ready may be there as a head, too.
    `slots` are the live ones, with the number of slots that are the same; `takes` are those of `idle_takes` that the
    caller still trusts in.
    """
    queue, present, pairs = list(waiting), Counter(slots), []
    for slot, taken in takes:
        queue = _without(queue, taken)
        running = running.after(begin=taken.account)
        occupy(present, slot)
    for lender in sorted(lenders, key=lambda lender: not lender.asked):
        if not any(run.ready for run in queue):
            break
        slot = Slot(lender.offer, idle=False)
        order = _order([*queue, lender.run], running.after(lender.run.account), slot, present, policy, now)
        if order and order[0].ready:
            running = running.after(lender.run.account, order[0].account)
            queue = [*_without(queue, order[0]), lender.run]
            if not lender.asked:
                pairs.append((lender, order[0]))
    return pairs


def _order(
    queue: Iterable[Waiting],
    running: InTraining,
    slot: Slot,
    slots: Mapping[Slot, int],
    policy: SchedulingSettings,
    now: float,
) -> list[Waiting]:
    """Return the runs that a slot takes, the first one first: without those that it leaves to other slots."""
    other_slots = others_than(slot, slots)
    queued = [run for run in queue if not leaves(Demand.parse(run.demand), slot.offer, other_slots)]
    return in_order(queued, running, slot.offer, policy, now)


def _without(queue: Iterable[Waiting], taken: Waiting) -> list[Waiting]:
    return [run for run in queue if run.run_id != taken.run_id]
