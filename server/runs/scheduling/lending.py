"""Lending: which slots go from runs without games to runs that are ready to train. Pure: no database, no clock.

A slot is lent only where the other run would get it: it is the first in the order in which that slot takes runs, beside
the one that gives the slot back and waits again. Slots that are idle, or given back already, serve their share first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from server.kit.scheduling import SchedulingSettings
from server.runs.scheduling.demand import Demand, Offer
from server.runs.scheduling.fit import Slot, leaves, others_than
from server.runs.scheduling.order import InTraining, Waiting, in_order, quota_reached


@dataclass(frozen=True)
class Lender:
    """A run that holds a slot and has nothing to lose."""

    run: Waiting
    """As it is going to wait again."""
    offer: Offer
    """Of its slot."""
    asked: bool = False
    """Whether it has been asked for the slot already."""


def lendings(
    waiting: Iterable[Waiting],
    lenders: Iterable[Lender],
    slots: Mapping[Slot, int],
    running: InTraining,
    policy: SchedulingSettings,
    now: float,
) -> list[tuple[Lender, Waiting]]:
    """Return the slots that are to be lent, in the order of the lenders, each with the run that gets it.

    `waiting` are all runs that are ready, and the heads of all groups; `slots` the live ones, with the number of slots
    that are the same.
    """

    idle = [(slot.offer, others_than(slot, slots)) for slot in slots if slot.idle]

    def is_served(run: Waiting) -> bool:
        demand = Demand.parse(run.demand)
        fits = any(offer.serves(demand) and not leaves(demand, offer, others) for offer, others in idle)
        return fits and quota_reached(run.account, running, policy) is None

    queue = [run for run in waiting if not (run.ready and is_served(run))]
    found = []
    for lender in sorted(lenders, key=lambda lender: not lender.asked):
        if not any(run.ready for run in queue):
            break
        others = others_than(Slot(lender.offer, idle=False), slots)
        mine = [run for run in (*queue, lender.run) if not leaves(Demand.parse(run.demand), lender.offer, others)]
        order = in_order(mine, running.after(lender.run.account), lender.offer, policy, now)
        if order and order[0].ready:
            running = running.after(lender.run.account, order[0].account)
            queue.remove(order[0])
            queue.append(lender.run)
            if not lender.asked:
                found.append((lender, order[0]))
    return found
