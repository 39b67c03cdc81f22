"""A run while it goes on: let it pause and go on, save it, change it, branch another run off it."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ludus.client.checkpoints import Checkpoints
from ludus.client.errors import Busy, NotSaved, ServerUnreachable
from ludus.client.patience import Patience
from ludus.client.runs import Runs
from ludus.client.transport import segment, without_none
from ludus.schemas import Amendments, CheckpointRequest, Run

LOOK_SECONDS: Final = 0.5
"""How often `save` looks whether the checkpoint is there."""

Changes = Mapping[str, Mapping[str, Any]]
"""Parts of behaviors' sections by the behaviors' names: `{"Walker": {"max_steps": 800_000}}`."""


class Lifecycle(Runs, Checkpoints):
    """Requests about runs that go on."""

    def pause(self, run: str) -> Run:
        """Ask a run to pause: with a checkpoint, and a free worker. `wait(run, ["PAUSED"])` waits for it."""
        return self._read(Run, self._post(f"/v1/runs/{segment(run)}:pause"))

    def resume(
        self,
        run: str,
        behaviors: Changes | None = None,
        environment_parameters: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Run:
        """Let a paused run go on from its newest checkpoint, with changes as `change_run` makes them."""
        changes = without_none({"behaviors": behaviors, "environment_parameters": environment_parameters})
        return self._read(Run, self._post(f"/v1/runs/{segment(run)}:resume", changes or None))

    def change_run(
        self,
        run: str,
        behaviors: Changes | None = None,
        environment_parameters: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Run:
        """Change hyperparameters, `max_steps` or environment parameters of a run that has not ended.

        `behaviors` has parts of their sections. Returns the run with its present configuration; the event
        `hyperparameters_changed` says when the trainer goes on with it.
        """
        changes = without_none({"behaviors": behaviors, "environment_parameters": environment_parameters})
        return self._read(Run, self._patch(f"/v1/runs/{segment(run)}", changes))

    def amendments(self, run: str) -> Amendments:
        """Return the configuration that a run was created with, the present one, and the changes between them."""
        return self._read(Amendments, self._get(f"/v1/runs/{segment(run)}/amendments"))

    def request_checkpoint(self, run: str) -> CheckpointRequest:
        """Ask a running run for a checkpoint now; returns at once. `save` waits for it."""
        return self._read(CheckpointRequest, self._post(f"/v1/runs/{segment(run)}:checkpoint"))

    def checkpoint_request(self, run: str, seq: int) -> CheckpointRequest:
        """Return a request for a checkpoint, with the checkpoint's id once it is stored."""
        return self._read(CheckpointRequest, self._get(f"/v1/runs/{segment(run)}/checkpoint_requests/{seq}"))

    def save(self, run: str, timeout: float | None = 60.0) -> str:
        """Ask a running run for a checkpoint now, and wait until it is stored; returns its id.

        `timeout` is in seconds; None waits for ever. Raises NotSaved when there is none, or none in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        patience = Patience()
        request = self.request_checkpoint(run)
        while request.answered_at is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise NotSaved(run, f"there is none after {timeout:g} s; the trainer still owes request {request.seq}")
            time.sleep(LOOK_SECONDS)
            try:
                request = self.checkpoint_request(request.run_id, request.seq)
                patience.reset()
            except (ServerUnreachable, Busy) as error:
                patience.bear(error)
        if request.checkpoint_id is None:
            raise NotSaved(run, request.problem or "the server does not say why")
        return request.checkpoint_id

    def branch(
        self,
        run: str,
        checkpoint: str = "latest",
        *,
        overrides: Mapping[str, Any] | None = None,
        go_on: bool = False,
        name: str | None = None,
        tags: Sequence[str] = (),
        priority: int = 0,
    ) -> Run:
        """Queue another run that begins with a checkpoint of this one, and is configured like it.

        It begins at step 0 with the checkpoint's networks, or with `go_on` exactly where the checkpoint was taken.
        `overrides` maps dotted paths to values, as for `create_run`.
        """
        found = self.get_checkpoint(run, checkpoint)
        origin = self.get_run(found.run_id)
        assert origin.config is not None, "a single run comes with its configuration"
        config = branched(origin.config, found.id, found.steps, go_on=go_on)
        return self.create_run(config, overrides=overrides, name=name, tags=tags, priority=priority)


def branched(
    config: Mapping[str, Any], checkpoint_id: str, behaviors: Sequence[str] | Mapping[str, int], *, go_on: bool
) -> dict[str, Any]:
    """Return a run's configuration for another one that begins with a checkpoint, which holds these behaviors."""
    whole = {**config.get("checkpoint_settings", {}), "resume_from": checkpoint_id if go_on else None, "run_id": "ppo"}
    branch = {**config, "checkpoint_settings": whole}
    branch["behaviors"] = {
        name: {**section, "initialize_from": None if go_on or name not in behaviors else checkpoint_id}
        for name, section in config["behaviors"].items()
    }
    return branch
