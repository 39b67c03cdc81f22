"""Checkpoints: of runs, and uploaded ones."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ludus.client.backoff import ServerBackoff
from ludus.client.errors import NotSaved
from ludus.client.transport import Resource, segment, without_none
from ludus.paths import AnyPath
from ludus.schemas import Checkpoint, CheckpointRequest, CheckpointVerified, Pruned, UploadedCheckpoint

POLL_SECONDS: Final = 0.5
"""Pause of `save` between two requests."""


class Checkpoints(Resource):
    """Requests about checkpoints of runs. `checkpoint` is an id, `latest` or `best`."""

    def list(self, run: str) -> Sequence[Checkpoint]:
        """Return a run's checkpoints, newest first."""
        return [*self._transport.pages(Checkpoint, f"/v1/runs/{segment(run)}/checkpoints")]

    def get(self, run: str, checkpoint: str = "latest") -> Checkpoint:
        """Return one checkpoint."""
        return self._transport.get(Checkpoint, _path(run, checkpoint))

    def pin(self, run: str, checkpoint: str) -> Checkpoint:
        """Exempt a checkpoint from retention."""
        return self._transport.post(Checkpoint, f"{_path(run, checkpoint)}:pin")

    def unpin(self, run: str, checkpoint: str) -> Checkpoint:
        """Subject a checkpoint to retention again."""
        return self._transport.post(Checkpoint, f"{_path(run, checkpoint)}:unpin")

    def score(self, run: str, checkpoint: str, metric: str, value: float, *, behavior: str = "") -> Checkpoint:
        """Store a metric of an evaluation with a checkpoint; `checkpoint_settings.keep_best.metric` may name it."""
        body = {"metric": metric, "value": value, "behavior": behavior}
        return self._transport.post(Checkpoint, f"{_path(run, checkpoint)}:score", body)

    def verify(self, run: str, checkpoint: str = "latest") -> CheckpointVerified:
        """Compare the checksums of all files of a checkpoint, on the server. A damaged checkpoint is marked."""
        return self._transport.post(CheckpointVerified, f"{_path(run, checkpoint)}:verify", {}, slow=True)

    def prune(
        self, *, older_than_seconds: float | None = None, max_bytes: int | None = None, dry_run: bool = False
    ) -> Pruned:
        """Delete checkpoints of runs by age and total size; the server's settings replace limits that are None.

        The newest good checkpoint of every run stays, and the best, the pinned and the used ones.
        """
        body = without_none(older_than_seconds=older_than_seconds, max_bytes=max_bytes, dry_run=dry_run)
        return self._transport.post(Pruned, "/v1/checkpoints:prune", body, slow=True)

    def download(self, run: str, checkpoint: str, name: str, target: AnyPath) -> Path:
        """Download one file of a checkpoint to `target` and return it.

        A download that breaks off is resumed, and the checksum is verified at the end: `target` is either the complete
        file or unchanged.
        """
        return self._transport.download(f"{_path(run, checkpoint)}/files/{segment(name)}", name, target)

    def request(self, run: str) -> CheckpointRequest:
        """Ask a running run for a checkpoint now; returns at once. `save` waits for it."""
        return self._transport.post(CheckpointRequest, f"/v1/runs/{segment(run)}:checkpoint")

    def get_request(self, run: str, seq: int) -> CheckpointRequest:
        """Return a request for a checkpoint, with the checkpoint's id once it is stored."""
        return self._transport.get(CheckpointRequest, f"/v1/runs/{segment(run)}/checkpoint_requests/{seq}")

    def save(self, run: str, timeout: float | None = 60.0) -> str:
        """Ask a running run for a checkpoint now, wait until it is stored, and return its id.

        `timeout` is in seconds; None is no limit. Raises NotSaved when there is no checkpoint, or none in time.
        """
        backoff = ServerBackoff(timeout)
        request = backoff.attempt(lambda: self.request(run))
        while request.answered_at is None:
            if backoff.over:
                raise NotSaved(run, f"there is none after {timeout:g} s; the trainer still owes request {request.seq}")
            backoff.sleep(POLL_SECONDS)
            request = backoff.persist(partial(self.get_request, request.run_id, request.seq))
        if request.checkpoint_id is None:
            raise NotSaved(run, request.problem or "the server does not say why")
        return request.checkpoint_id


class UploadedCheckpoints(Resource):
    """Requests about checkpoints that were uploaded, for configurations to name in `initialize_from`."""

    def upload(
        self, file: AnyPath, *, name: str | None = None, behavior: str | None = None, idempotency_key: str | None = None
    ) -> UploadedCheckpoint:
        """Store a `checkpoint.pt` of ML-Agents. `behavior` is a note for people: which one it was trained for."""
        parameters = without_none(name=name, behavior=behavior)
        return self._transport.upload(UploadedCheckpoint, "/v1/checkpoints", file, parameters, idempotency_key)

    def list(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[UploadedCheckpoint]:
        """Iterate over uploaded checkpoints, newest first unless `order_by` says otherwise."""
        return self._transport.pages(UploadedCheckpoint, "/v1/checkpoints", limit, filter=filter, order_by=order_by)

    def get(self, checkpoint: str) -> UploadedCheckpoint:
        """Return one uploaded checkpoint."""
        return self._transport.get(UploadedCheckpoint, f"/v1/checkpoints/{segment(checkpoint)}")

    def delete(self, checkpoint: str) -> None:
        """Delete an uploaded checkpoint. Refused while a run that has not ended begins with it."""
        self._transport.delete(f"/v1/checkpoints/{segment(checkpoint)}")


def _path(run: str, checkpoint: str) -> str:
    return f"/v1/runs/{segment(run)}/checkpoints/{segment(checkpoint)}"
