"""Runs: create, read, wait for, change and end them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ludus.client.backoff import ServerBackoff
from ludus.client.errors import Busy, RunStalled, ServerUnreachable, WaitTimedOut
from ludus.client.transport import Resource, route, texts, without_none
from ludus.json_values import JsonObject
from ludus.schemas import (
    Amendments,
    Assessment,
    Attempt,
    Bottleneck,
    Checkpoint,
    Collector,
    EvaluationResult,
    Health,
    MatchResult,
    PlannedRun,
    Profile,
    Run,
    RunComparison,
    RunListed,
)

TERMINAL_STATES: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
LONG_POLL_SECONDS: Final = 20.0
"""Longest time of one request of `wait`; below the idle time-out of common proxies."""
STALL_POLL_SECONDS: Final = 5.0
"""The same with `unless_stalled`: a run may stall by the passing of time, without a change of state."""
HELD_SHARE: Final = 0.9
"""Part of the time until the deadline for which the server may hold a request: the rest is for its answer."""
PAUSED_POLL_SECONDS: Final = 1.0
"""Pause between two requests of `wait` about a run that is PAUSED."""

Changes = Mapping[str, Mapping[str, object]]
"""Parts of behaviors' sections by the behaviors' names: `{"Walker": {"max_steps": 800_000}}`."""


@dataclass(frozen=True)
class StoredConfig:
    """A stored configuration as the source of a run; the newest version unless `version` says another."""

    name: str
    version: int | None = None


Config = Mapping[str, object] | str | StoredConfig
"""The source of a run's configuration: a document, its YAML or JSON text, or a stored one."""


class Runs(Resource):
    """Requests about runs. `run` is an id, or a name, which stands for the newest run of that name."""

    def create(
        self,
        config: Config,
        *,
        overrides: Mapping[str, object] | None = None,
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
        body = _body(config, overrides, name=name, tags=texts(tags), priority=priority, owner=owner)
        return self._post(Run, "/v1/runs", body, idempotency_key)

    def plan(
        self,
        config: Config,
        *,
        overrides: Mapping[str, object] | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        priority: int = 0,
        owner: str = "",
    ) -> PlannedRun:
        """Check a configuration as `create` does, without a run; returns the resolved configuration."""
        body = _body(config, overrides, name=name, tags=texts(tags), priority=priority, owner=owner)
        return self._post(PlannedRun, "/v1/runs", {**body, "validate_only": True})

    def compare(self, runs: Sequence[str], metrics: Sequence[str] = ()) -> RunComparison:
        """Return several runs side by side, at most 200: the keys in which their configurations differ, and numbers.

        `metrics` are those of `list`: `[BEHAVIOR:]KEY`, with `@max` or `@min` the highest or lowest value.
        """
        return self._get(RunComparison, "/v1/runs:compare", {"runs": texts(runs), "metrics": texts(metrics)})

    def get(self, run: str) -> Run:
        """Return a run."""
        return self._get(Run, route("runs", run))

    def list(
        self, filter: str = "", order_by: str = "", limit: int | None = None, metrics: Sequence[str] = ()
    ) -> Iterator[RunListed]:
        """Iterate over runs, newest first unless `order_by` says otherwise. Pages are fetched as needed.

        `metrics` are `[BEHAVIOR:]KEY`, with `@max` or `@min` for the extremes; each run has them as `metrics`, and
        `order_by="metric desc"`, with the word `metric` itself, sorts by the first one.
        """
        return self._pages(RunListed, "/v1/runs", limit, filter=filter, order_by=order_by, metrics=texts(metrics))

    def attempts(self, run: str) -> Sequence[Attempt]:
        """Return all attempts of a run, oldest first."""
        return [*self._pages(Attempt, route("runs", run, "attempts"))]

    def collectors(self, run: str) -> Sequence[Collector]:
        """Return the collectors of a run's live attempt, edge collectors among them; none while it has no attempt."""
        return [*self._pages(Collector, route("runs", run, "collectors"))]

    def bottleneck(self, run: str) -> Bottleneck:
        """Return what holds a run back, with figures and advice."""
        return self._get(Bottleneck, route("runs", run, "bottleneck"))

    def health(self, run: str) -> Health:
        """Return the findings about a run's learning: those that hold now, or held at its end."""
        return self._get(Health, route("runs", run, "health"))

    def profile(self, run: str, seconds: int = 10) -> Profile:
        """Sample the stacks of a running run's trainer and collectors; `get_profile` says when that is done."""
        return self._post(Profile, route("runs", run) + ":profile", {"seconds": seconds})

    def get_profile(self, run: str) -> Profile:
        """Return the newest profile of a run's newest attempt. Raises NotFound where none was asked for."""
        return self._get(Profile, route("runs", run, "profile"))

    def amendments(self, run: str) -> Amendments:
        """Return the configuration that a run was created with, the present one, and the changes between them."""
        return self._get(Amendments, route("runs", run, "amendments"))

    def result(self, run: str) -> MatchResult | EvaluationResult:
        """Return the result so far of a run of kind `match` or `evaluate`. Raises NotFound before its first one."""
        return self._get(Assessment, route("runs", run, "result")).result

    def rename(self, run: str, name: str) -> Run:
        """Give a run another name, in any state."""
        return self._transport.patch(Run, route("runs", run), {"name": name})

    def tag(self, run: str, add: Sequence[str] = (), remove: Sequence[str] = ()) -> Run:
        """Add and remove tags of a run, in any state."""
        return self._transport.patch(Run, route("runs", run), {"add_tags": texts(add), "remove_tags": texts(remove)})

    def change(
        self,
        run: str,
        behaviors: Changes | None = None,
        environment_parameters: Changes | None = None,
        record: bool | float | JsonObject | None = None,
    ) -> Run:
        """Change hyperparameters, `max_steps`, environment parameters or the recording of a run that has not ended.

        `behaviors` has parts of their sections, `record` what is recorded from now on, as `simulators.record` in a
        configuration. Returns the run with its present configuration; the event
        `hyperparameters_changed` says when the trainer uses it.
        """
        changes = without_none(behaviors=behaviors, environment_parameters=environment_parameters, record=record)
        return self._transport.patch(Run, route("runs", run), changes)

    def delete(self, run_id: str) -> None:
        """Delete a run that has ended, by its id, with its metrics, events, logs and checkpoints.

        Refused while something outside the run needs it; the problem's `detail` names it. Deleting it again changes
        nothing.
        """
        self._transport.delete(route("runs", run_id))

    def pause(self, run: str) -> Run:
        """Ask a run to write a checkpoint and free its worker. `wait(run, ["PAUSED"])` waits for it."""
        return self._post(Run, route("runs", run) + ":pause")

    def resume(self, run: str, behaviors: Changes | None = None, environment_parameters: Changes | None = None) -> Run:
        """Continue a paused run from its newest checkpoint, with changes as `change` makes them."""
        changes = without_none(behaviors=behaviors, environment_parameters=environment_parameters)
        return self._post(Run, route("runs", run) + ":resume", changes or None)

    def stop(self, run: str) -> Run:
        """Ask a run to end with a final checkpoint and its models."""
        return self._post(Run, route("runs", run) + ":stop")

    def cancel(self, run: str) -> Run:
        """Ask a run to end at once, without a checkpoint."""
        return self._post(Run, route("runs", run) + ":cancel")

    def wait(
        self,
        run: str,
        states: Sequence[str] = ("terminal",),
        timeout: float | None = None,
        *,
        unless_stalled: bool = False,
        watch: Callable[[Run], None] | None = None,
    ) -> Run:
        """Block until a run is in one of `states` (`terminal` stands for all final ones) or has ended, and return it.

        Outlasts a server that is away until `timeout` (in seconds), or without one for ten minutes, but for one minute
        only where it has never answered. Raises WaitTimedOut after `timeout`, ServerUnreachable if there was no answer
        until then, and with `unless_stalled` RunStalled as soon as the run continues only after a person acts
        (`Run.needs_action`). `watch` is called with each answer of the server, and may end the wait by an exception.
        """
        ends = TERMINAL_STATES | {*texts(states)}
        query = ",".join([*states, "PAUSED"] if unless_stalled else states)
        longest = 0.0 if unless_stalled else LONG_POLL_SECONDS  # it may have stalled long ago
        backoff = ServerBackoff(timeout)
        record: Run | None = None
        while True:
            remaining = backoff.left
            seconds = longest if remaining is None else min(longest, HELD_SHARE * remaining)
            ask = partial(self._get, Run, route("runs", run), {"wait": query, "timeout": f"{seconds:.3f}"})
            try:
                record = backoff.attempt(ask)
            except (ServerUnreachable, Busy) as error:
                if record is not None and timeout is not None and backoff.over:
                    raise WaitTimedOut(record, timeout, backoff.failing_seconds) from error
                backoff.wait(error)
                continue
            if record.state in ends:
                return record
            if watch is not None:
                watch(record)
            if unless_stalled and record.needs_action:
                raise RunStalled(record)
            longest = STALL_POLL_SECONDS if unless_stalled else LONG_POLL_SECONDS
            if timeout is not None and backoff.over:
                raise WaitTimedOut(record, timeout)
            if unless_stalled and record.state == "PAUSED":  # answered at once; its simulators may be waking it
                backoff.sleep(PAUSED_POLL_SECONDS)

    def branch(
        self,
        run: str,
        checkpoint: str = "latest",
        *,
        overrides: Mapping[str, object] | None = None,
        go_on: bool = False,
        name: str | None = None,
        tags: Sequence[str] = (),
        priority: int = 0,
    ) -> Run:
        """Queue another run that begins with a checkpoint of this one, and is configured like it.

        It begins at step 0 with the checkpoint's networks, or with `go_on` exactly where the checkpoint was taken.
        `overrides` maps dotted paths to values, as for `create`.
        """
        begin = self._get(Checkpoint, route("runs", run, "checkpoints", checkpoint))
        config = branched(self.get(begin.run_id).config, begin.id, begin.steps, go_on=go_on)
        return self.create(config, overrides=overrides, name=name, tags=tags, priority=priority)


def branched(
    config: JsonObject, checkpoint_id: str, behaviors: Sequence[str] | Mapping[str, int], *, go_on: bool
) -> JsonObject:
    """Return a run's configuration for another one that begins with a checkpoint, which holds these behaviors."""
    begin = {"resume_from": checkpoint_id if go_on else None, "run_id": "ppo"}
    sections = {
        name: {**section, "initialize_from": None if go_on or name not in behaviors else checkpoint_id}
        for name, section in config["behaviors"].items()
    }
    return {**config, "checkpoint_settings": {**config.get("checkpoint_settings", {}), **begin}, "behaviors": sections}


def _body(config: Config, overrides: Mapping[str, object] | None, **described: object) -> JsonObject:
    """Return the body of a request to create a run."""
    if isinstance(config, StoredConfig):
        described |= {"config_name": config.name, "config_version": config.version}
    else:
        described["config"] = config
    return without_none(overrides=dict(overrides or {}), **described)
