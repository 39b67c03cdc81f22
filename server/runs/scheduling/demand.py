"""Demands of a run on a slot, offers of a slot, and which slot leaves a run to another one. Pure.

A demand is stored with the run as one short text (`1;a100,linux`: one GPU and two labels), so that runs that demand the
same form a group in an index, and a slot looks only into the groups that it serves.

Best fit: a slot leaves a run to another slot if

- an idle slot with fewer GPUs serves it: a GPU that no run uses is not taken by one that another slot serves;
- the run demands no GPU, this is the last idle slot with GPUs, and a slot without GPUs serves it, even a busy one: the
  next run that demands a GPU finds one.

Among idle slots there is always one that no rule keeps from the run, unless a slot without GPUs is to take it when its
present run ends. So that such a run does not wait for as long as another one trains, and no idle slot is trusted that
takes nothing, the caller stops leaving a run after a while (`LUDUS_SCHEDULING__BEST_FIT_SECONDS`).
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ludus.plugins import Kind, added
from server.kit.errors import InvalidConfig, Problem
from server.kit.scheduling import SchedulingSettings

LARGEST = 400
"""Characters of a demand's text: what `MOST_LABELS` of 40 characters take, and a little more."""
MOST_LABELS = 8

_NAME = re.compile(r"[0-9]{1,2}(;[A-Za-z0-9._-]{1,40}(,[A-Za-z0-9._-]{1,40}){0,7})?")


def _plugins_in(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the labels of the plug-ins of other packages that a resolved configuration names."""
    labels = {(plugin.kind, plugin.name): plugin.label for plugin in added()}
    for behavior in [config.get("default_settings") or {}, *(config.get("behaviors") or {}).values()]:
        signals = behavior.get("reward_signals") or {}
        named = [(Kind.TRAINERS, behavior.get("trainer_type"))]
        named += [(Kind.REWARDS, name) for name, signal in signals.items() if signal is not None]
        named += [(Kind.ENCODERS, name) for name in _encoders_in(behavior)]
        yield from (labels[key] for key in named if key in labels)


def _encoders_in(value: object) -> Iterator[str]:
    """Yield the encoders of the networks of a behavior: the policy's, and those of its reward signals."""
    match value:
        case {"vis_encode_type": str(name)}:
            yield name
        case dict():
            yield from (name for inner in value.values() for name in _encoders_in(inner))
        case list():
            yield from (name for inner in value for name in _encoders_in(inner))


@dataclass(frozen=True)
class Demand:
    """Demands on the slot that trains a run."""

    gpus: int = 0
    labels: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return what a resolved configuration demands: its section `resources`, and the plug-ins that it names.

        Raises InvalidConfig for more labels than a demand may have.
        """
        resources = config.get("resources") or {}
        labels = {*(resources.get("labels") or ()), *_plugins_in(config)}
        if len(labels) > MOST_LABELS:
            message = (
                f"with its plug-ins the run demands {len(labels)} labels of a worker, at most {MOST_LABELS} are legal"
            )
            raise InvalidConfig(
                [Problem("resources.labels", "out_of_range", f"{message}: {', '.join(sorted(labels))}")]
            )
        return cls(int(resources.get("gpu") or 0), frozenset(labels))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `text` gave. The empty text demands nothing."""
        gpus, _, labels = text.partition(";")
        return cls(int(gpus or 0), frozenset(filter(None, labels.split(","))))

    @property
    def text(self) -> str:
        """Equal for equal demands; empty where nothing is demanded."""
        return f"{self.gpus};{','.join(sorted(self.labels))}" if self.gpus or self.labels else ""

    @property
    def name(self) -> str:
        """The text for people and addresses: `0`, `1`, `1;a100,linux`."""
        return self.text.removesuffix(";") or "0"

    @classmethod
    def named(cls, name: str) -> Self:
        """Read a name. Raises ValueError with the right form."""
        if not _NAME.fullmatch(name):
            raise ValueError(
                "a demand is a number of GPUs, and labels after a semicolon, as in 0, 1 or 1;a100,linux (in an address "
                "the semicolon is %3B)"
            )
        return cls.parse(name)

    def __str__(self) -> str:
        """Say it to a person."""
        parts = [f"{self.gpus} GPU{'s' * (self.gpus > 1)}"] if self.gpus else []
        if self.labels:
            parts.append(f"the label{'s' * (len(self.labels) > 1)} {', '.join(sorted(self.labels))}")
        return " and ".join(parts) or "nothing in particular"


@dataclass(frozen=True)
class Offer:
    """Resources of one slot of a worker host."""

    gpus: int = 0
    labels: frozenset[str] = frozenset()
    cordoned: bool = False
    """Whether the slot takes no run at present."""

    @classmethod
    def of(cls, labels: Iterable[str], resources: Mapping[str, Any], *, cordoned: bool = False) -> Self:
        """Return the offer of a row of the `workers` table."""
        return cls(len(resources.get("gpus") or ()), frozenset(labels), cordoned)

    @property
    def kind(self) -> str:
        """16 letters and digits, the same for slots that have the same: their row in `workers`, and their messages."""
        return hashlib.sha256(f"{self.gpus};{','.join(sorted(self.labels))}".encode()).hexdigest()[:16]

    def fits(self, demand: Demand) -> bool:
        """Tell whether the slot has what a run with this demand needs."""
        return demand.gpus <= self.gpus and demand.labels <= self.labels

    def serves(self, demand: Demand) -> bool:
        """Tell whether a run with this demand may run here now."""
        return self.fits(demand) and not self.cordoned


def no_slot_serves(demand: Demand, offers: Mapping[Offer, int], pools: Collection[str] = ()) -> str | None:
    """Say why no slot can train a run with this demand, and what to do; None if one can.

    `offers` are those of all live slots, with the number of slots that have the same; `pools` are the names of the
    declared pools, none of which serves it either.
    """
    if any(offer.serves(demand) for offer in offers):
        return None
    none = f" None of the pools {', '.join(sorted(pools))} has it (LUDUS_SCHEDULING__POOLS)." if pools else ""
    if not offers:
        return f"No worker is there: start one (`ludus worker`, or `ludus up`).{none}"
    if fitting := sum(count for offer, count in offers.items() if offer.fits(demand)):
        slots = "The only slot that fits is" if fitting == 1 else f"All {fitting} slots that fit are"
        return f"{slots} cordoned: lift that (`ludus worker uncordon`), or start another worker."
    largest = max(offer.gpus for offer in offers)
    missing = sorted(demand.labels - frozenset().union(*(offer.labels for offer in offers)))
    if missing:
        why = f"none has the label{'s' * (len(missing) > 1)} {', '.join(missing)}"
    elif demand.gpus > largest:
        why = f"the largest has {largest}" if largest else "none has a GPU"
    else:
        why = "none has all of it together"
    plugins = [f"{plugin.label} (install {plugin.package} there)" for plugin in added() if plugin.label in missing]
    why += f"; these are plug-ins: {', '.join(plugins)}" if plugins else ""
    live = sum(offers.values())
    slots = f"{live} live slot{'s' * (live > 1)}"
    return (
        f"No worker can train this run: it wants {demand}, and of {slots} {why}.{none} Start a worker that has it "
        "(LUDUS_WORKER__LABELS, LUDUS_WORKER__GPUS), or create the run with other `resources`."
    )


@dataclass(frozen=True)
class Slot:
    """A live slot, as the others see it."""

    offer: Offer
    idle: bool
    """Whether it has no run."""


def fits_better(demand: Demand, offer: Offer, others: Iterable[Slot]) -> bool:
    """Return whether an idle slot among the others serves a demand, and has fewer GPUs than this offer."""
    return any(slot.idle and slot.offer.gpus < offer.gpus and slot.offer.serves(demand) for slot in others)


def keeps_last_gpu(demand: Demand, offer: Offer, others: Sequence[Slot]) -> bool:
    """Return whether this offer is the last idle one with GPUs, and a run without need of one can go elsewhere."""
    if demand.gpus or not offer.gpus:
        return False
    if any(slot.idle and slot.offer.gpus and not slot.offer.cordoned for slot in others):
        return False
    return any(not slot.offer.gpus and slot.offer.serves(demand) for slot in others)


def leaves(demand: Demand, offer: Offer, others: Sequence[Slot]) -> bool:
    """Return whether a slot with this offer leaves a run with this demand to one of the others."""
    return fits_better(demand, offer, others) or keeps_last_gpu(demand, offer, others)


def others_than(slot: Slot, slots: Mapping[Slot, int]) -> list[Slot]:
    """Return what one of these slots sees of the others; `slots` has the number of slots that are the same."""
    return [candidate for candidate, count in slots.items() if count > (candidate == slot)]


def occupy(slots: Counter[Slot], slot: Slot, count: int = 1) -> None:
    """Count so many idle slots that are the same as busy."""
    slots[slot] -= count
    slots[replace(slot, idle=False)] += count


def pool_of(demand: Demand, policy: SchedulingSettings) -> str | None:
    """Return the pool whose workers serve a demand: the one with the fewest GPUs, then labels; None if none does."""
    serving = [
        (pool.gpus, len(pool.labels), name)
        for name, pool in policy.pools.items()
        if Offer(pool.gpus, frozenset(pool.labels)).serves(demand)
    ]
    return min(serving)[2] if serving else None
