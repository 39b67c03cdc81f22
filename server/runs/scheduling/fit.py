"""Best fit: the waiting runs that a slot leaves to another slot. Pure: no database, no clock.

A slot leaves a run to another slot if

- an idle slot with fewer GPUs serves it: a GPU that no run uses is not taken by one that another slot serves;
- the run demands no GPU, this is the last idle slot with GPUs, and a slot without GPUs serves it, even a busy one: the
  next run that demands a GPU finds one.

Among idle slots there is always one that no rule keeps from the run, unless a slot without GPUs is to take it when its
present run ends. So that such a run does not wait for as long as another one trains, and no idle slot is trusted that
takes nothing, the caller stops leaving a run after a while (`LUDUS_SCHEDULING__BEST_FIT_SECONDS`).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from server.runs.scheduling.demand import Demand, Offer


@dataclass(frozen=True)
class Slot:
    """A live slot, as the others see it."""

    offer: Offer
    idle: bool
    """Whether it has no run."""
    hears: bool = True
    """Whether it receives the messages for its kind; one of a release before `0028` has only those for all slots."""


def fits_better(demand: Demand, offer: Offer, others: Iterable[Slot]) -> bool:
    """Return whether an idle slot among the others serves a demand, and has fewer GPUs than this offer."""
    return any(other.idle and other.offer.gpus < offer.gpus and other.offer.serves(demand) for other in others)


def keeps_last_gpu(demand: Demand, offer: Offer, others: Sequence[Slot]) -> bool:
    """Return whether this offer is the last idle one with GPUs, and a run without need of one can go elsewhere."""
    if demand.gpus or not offer.gpus:
        return False
    if any(other.idle and other.offer.gpus and not other.offer.cordoned for other in others):
        return False
    return any(not other.offer.gpus and other.offer.serves(demand) for other in others)


def leaves(demand: Demand, offer: Offer, others: Sequence[Slot]) -> bool:
    """Return whether a slot with this offer leaves a run with this demand to one of the others."""
    return fits_better(demand, offer, others) or keeps_last_gpu(demand, offer, others)


def others_than(slot: Slot, slots: Mapping[Slot, int]) -> list[Slot]:
    """Return what one of these slots sees of the others; `slots` has the number of slots that are the same."""
    return [other for other, count in slots.items() if count > (other == slot)]


def occupy(slots: Counter[Slot], slot: Slot, count: int = 1) -> None:
    """Count so many idle slots that are the same as busy."""
    slots[slot] -= count
    slots[replace(slot, idle=False)] += count
