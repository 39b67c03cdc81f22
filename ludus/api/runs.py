"""Runs: ask for one, look at it, wait for it, end it; who trained it, and who plays in it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ludus.api.errors import Busy, ServerUnreachable, WaitTimedOut
from ludus.api.patience import Patience
from ludus.api.transport import Transport, segment, without_none
from ludus.records import (
    Attempt,
    PlannedRun,
    Run,
    Simulator,
    Worker,
)

TERMINAL_STATES: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
LONG_POLL_SECONDS: Final = 20.0
"""How long one request of `wait` may stay open; below the idle time-out of common proxies."""


@dataclass(frozen=True)
class StoredConfig:
    """A stored configuration as the source of a run; the newest version unless `version` says another."""

    name: str
    version: int | None = None


Config = Mapping[str, Any] | str | StoredConfig
"""Where a run's configuration comes from: a document, its YAML or JSON text, or a stored one."""


def run_body(config: Config, overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a request says of a configuration."""
    if isinstance(config, StoredConfig):
        source = without_none({"config_name": config.name, "config_version": config.version})
    else:
        source = {"config": config}
    return {**source, "overrides": dict(overrides or {})}


class Runs(Transport):
    """Requests about runs."""

    def create_run(
        self,
        config: Config,
        *,
        overrides: Mapping[str, Any] | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> Run:
        """Queue a training run.

        `config` is a document, its YAML text, or a `StoredConfig`; `overrides` maps dotted paths
        (`behaviors.CartPole.max_steps`) to values. Runs with a higher priority are trained first.
        """
        body = run_body(config, overrides) | without_none({"name": name, "tags": list(tags), "priority": priority})
        return self._read(Run, self._post("/v1/runs", body, idempotency_key))

    def plan_run(
        self,
        config: Config,
        *,
        overrides: Mapping[str, Any] | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        priority: int = 0,
    ) -> PlannedRun:
        """Check what `create_run` would queue, without queuing it; returns the resolved configuration."""
        body = run_body(config, overrides) | without_none({"name": name, "tags": list(tags), "priority": priority})
        return self._read(PlannedRun, self._post("/v1/runs", body | {"validate_only": True}))

    def get_run(self, run: str) -> Run:
        """Return a run by its id, or the newest run of a name."""
        return self._read(Run, self._get(f"/v1/runs/{segment(run)}"))

    def list_runs(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[Run]:  # noqa: A002
        """Iterate over runs, newest first unless `order_by` says otherwise. Pages are fetched as needed."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(Run, "/v1/runs", "runs", parameters, limit)

    def stop(self, run: str) -> Run:
        """Ask a run to end with a final checkpoint and its models."""
        return self._read(Run, self._post(f"/v1/runs/{segment(run)}:stop"))

    def cancel(self, run: str) -> Run:
        """Ask a run to end at once, without a checkpoint."""
        return self._read(Run, self._post(f"/v1/runs/{segment(run)}:cancel"))

    def wait(self, run: str, states: Sequence[str] = ("terminal",), timeout: float | None = None) -> Run:
        """Block until a run is in one of `states` (`terminal` stands for all final ones) or has ended, and return it.

        Bears with a server that is away for up to a minute. `timeout` is in seconds; raises WaitTimedOut after it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        wanted = {name for state in states for name in (TERMINAL_STATES if state == "terminal" else {state})}
        patience = Patience()
        while True:
            left = LONG_POLL_SECONDS if deadline is None else deadline - time.monotonic()
            parameters = {"wait": ",".join(states), "timeout": f"{max(0.0, min(left, LONG_POLL_SECONDS)):.3f}"}
            try:
                record = self._read(Run, self._get(f"/v1/runs/{segment(run)}", parameters))
            except (ServerUnreachable, Busy) as error:
                patience.bear(error)
                continue
            patience.reset()
            if record.state in wanted or record.state in TERMINAL_STATES:
                return record
            if deadline is not None and time.monotonic() >= deadline:
                assert timeout is not None
                raise WaitTimedOut(record, timeout)

    def attempts(self, run: str) -> list[Attempt]:
        """Return all attempts of a run, oldest first."""
        return self._all(Attempt, self._get(f"/v1/runs/{segment(run)}/attempts"), "attempts")

    def simulators(self, run: str, state: str | None = None) -> list[Simulator]:
        """Return the simulators of a run, connected and past, newest first; only those in `state` if it is given."""
        parameters = {} if state is None else {"filter": f'state = "{state}"'}
        return list(self._items(Simulator, f"/v1/runs/{segment(run)}/simulators", "simulators", parameters))

    def workers(self) -> list[Worker]:
        """Return the slots of all worker hosts."""
        return list(self._items(Worker, "/v1/workers", "workers"))
