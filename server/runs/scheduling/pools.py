"""Pools: kinds of workers that an autoscaler starts on demand (`LUDUS_SCHEDULING__POOLS`). Pure."""

from server.kit.scheduling import SchedulingSettings
from server.runs.scheduling.demand import Demand, Offer


def pool_of(demand: Demand, policy: SchedulingSettings) -> str | None:
    """Return the pool whose workers serve a demand: the one with the fewest GPUs, then labels; None if none does."""
    serving = [
        (pool.gpus, len(pool.labels), name)
        for name, pool in policy.pools.items()
        if Offer(pool.gpus, frozenset(pool.labels)).serves(demand)
    ]
    return min(serving)[2] if serving else None
