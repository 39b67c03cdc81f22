"""Runs: ask for one, look at it, wait for it, end it; who trained it, and who plays in it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ludus.client.errors import Busy, RunStalled, ServerUnreachable, WaitTimedOut
from ludus.client.patience import Patience
from ludus.client.transport import Transport, segment, without_none
from ludus.schemas import Attempt, PlannedRun, Run, Simulator, Worker

TERMINAL_STATES: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
LONG_POLL_SECONDS: Final = 20.0
"""How long one request of `wait` may stay open; below the idle time-out of common proxies."""
STALL_LOOK_SECONDS: Final = 5.0
"""The same where a run that stalls shall be noticed: time alone, and no change of state, may make it one."""
PAUSED_LOOK_SECONDS: Final = 1.0
"""Pause between two looks at a run that is PAUSED."""


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
        owner: str = "",
        idempotency_key: str | None = None,
    ) -> Run:
        """Queue a training run.

        `config` is a document, its YAML text, or a `StoredConfig`; `overrides` maps dotted paths
        (`behaviors.CartPole.max_steps`) to values. Of a project's runs, those with a higher priority
        are trained first; `owner` is a label: of one token's runs, those of the owner with fewer in training go first.
        """
        said = {"name": name, "tags": list(tags), "priority": priority, "owner": owner}
        body = run_body(config, overrides) | without_none(said)
        return self._read(Run, self._post("/v1/runs", body, idempotency_key))

    def plan_run(
        self,
        config: Config,
        *,
        overrides: Mapping[str, Any] | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        priority: int = 0,
        owner: str = "",
    ) -> PlannedRun:
        """Check what `create_run` would queue, without queuing it; returns the resolved configuration."""
        said = {"name": name, "tags": list(tags), "priority": priority, "owner": owner}
        body = run_body(config, overrides) | without_none(said)
        return self._read(PlannedRun, self._post("/v1/runs", body | {"validate_only": True}))

    def get_run(self, run: str) -> Run:
        """Return a run by its id, or the newest run of a name."""
        return self._read(Run, self._get(f"/v1/runs/{segment(run)}"))

    def list_runs(
        self,
        filter: str = "",  # noqa: A002
        order_by: str = "",
        limit: int | None = None,
        metrics: Sequence[str] = (),
    ) -> Iterator[Run]:
        """Iterate over runs, newest first unless `order_by` says otherwise. Pages are fetched as needed.

        `metrics` are `[BEHAVIOR:]KEY`, with `@max` or `@min` for the extremes; each run has them as `Run.metrics`, and
        `order_by="metric desc"`, with the word `metric` itself, sorts by the first one.
        """
        parameters = {"filter": filter, "order_by": order_by, "metrics": list(metrics)}
        return self._items(Run, "/v1/runs", "runs", parameters, limit)

    def rename(self, run: str, name: str) -> Run:
        """Give a run another name, whatever its state."""
        return self._read(Run, self._patch(f"/v1/runs/{segment(run)}", {"name": name}))

    def tag(self, run: str, add: Sequence[str] = (), remove: Sequence[str] = ()) -> Run:
        """Add and remove tags of a run, whatever its state."""
        body = {"add_tags": list(add), "remove_tags": list(remove)}
        return self._read(Run, self._patch(f"/v1/runs/{segment(run)}", body))

    def delete_run(self, run_id: str) -> None:
        """Delete a run that has ended, by its id, with its metrics, events, logs and checkpoints.

        Refused while something outside the run needs it; the problem's `detail` names what. Deleting it again changes
        nothing.
        """
        self._delete(f"/v1/runs/{segment(run_id)}")

    def stop(self, run: str) -> Run:
        """Ask a run to end with a final checkpoint and its models."""
        return self._read(Run, self._post(f"/v1/runs/{segment(run)}:stop"))

    def cancel(self, run: str) -> Run:
        """Ask a run to end at once, without a checkpoint."""
        return self._read(Run, self._post(f"/v1/runs/{segment(run)}:cancel"))

    def wait(
        self,
        run: str,
        states: Sequence[str] = ("terminal",),
        timeout: float | None = None,
        *,
        unless_stalled: bool = False,
    ) -> Run:
        """Block until a run is in one of `states` (`terminal` stands for all final ones) or has ended, and return it.

        Bears with a server that is away for up to a minute. `timeout` is in seconds; raises WaitTimedOut after it, and
        with `unless_stalled` RunStalled as soon as the run goes on only when somebody acts (`Run.needs_action`).
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        wanted = {name for state in states for name in (TERMINAL_STATES if state == "terminal" else {state})}
        asked = [*states, "PAUSED"] if unless_stalled else states
        longest = 0.0 if unless_stalled else LONG_POLL_SECONDS  # it may have stalled long ago
        patience = Patience()
        while True:
            left = LONG_POLL_SECONDS if deadline is None else deadline - time.monotonic()
            parameters = {"wait": ",".join(asked), "timeout": f"{max(0.0, min(left, longest)):.3f}"}
            try:
                record = self._read(Run, self._get(f"/v1/runs/{segment(run)}", parameters))
            except (ServerUnreachable, Busy) as error:
                patience.bear(error)
                continue
            patience.reset()
            if record.state in wanted or record.state in TERMINAL_STATES:
                return record
            if unless_stalled and record.needs_action:
                raise RunStalled(record)
            longest = STALL_LOOK_SECONDS if unless_stalled else LONG_POLL_SECONDS
            if deadline is not None and time.monotonic() >= deadline:
                assert timeout is not None
                raise WaitTimedOut(record, timeout)
            if unless_stalled and record.state == "PAUSED":  # answered at once; its simulators may be waking it
                time.sleep(PAUSED_LOOK_SECONDS)

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
