"""Checkpoints: of runs, and of other programs."""

from collections.abc import Iterator
from pathlib import Path

from ludus.client.transport import Transport, segment, without_none
from ludus.paths import AnyPath
from ludus.schemas import Checkpoint, CheckpointVerified, Pruned, UploadedCheckpoint


class Checkpoints(Transport):
    """Requests about checkpoints."""

    def checkpoints(self, run: str) -> list[Checkpoint]:
        """Return a run's checkpoints, newest first."""
        return list(self._items(Checkpoint, f"/v1/runs/{segment(run)}/checkpoints", "checkpoints"))

    def get_checkpoint(self, run: str, checkpoint: str = "latest") -> Checkpoint:
        """Return one checkpoint by its id, or the `latest` or the `best`."""
        return self._read(Checkpoint, self._get(_path(run, checkpoint)))

    def pin_checkpoint(self, run: str, checkpoint: str) -> Checkpoint:
        """Keep a checkpoint whatever the rules of retention say."""
        return self._read(Checkpoint, self._post(f"{_path(run, checkpoint)}:pin"))

    def unpin_checkpoint(self, run: str, checkpoint: str) -> Checkpoint:
        """Let the rules decide again whether a checkpoint is kept."""
        return self._read(Checkpoint, self._post(f"{_path(run, checkpoint)}:unpin"))

    def score_checkpoint(
        self, run: str, checkpoint: str, metric: str, value: float, *, behavior: str = ""
    ) -> Checkpoint:
        """Enter what an evaluation says of a checkpoint; `checkpoint_settings.keep_best.metric` may name it."""
        body = {"metric": metric, "value": value, "behavior": behavior}
        return self._read(Checkpoint, self._post(f"{_path(run, checkpoint)}:score", body))

    def verify_checkpoint(self, run: str, checkpoint: str = "latest") -> CheckpointVerified:
        """Have the server read all files of a checkpoint and compare their checksums. One that is damaged is marked."""
        return self._read(CheckpointVerified, self._make(f"{_path(run, checkpoint)}:verify", {}, None))

    def prune_checkpoints(
        self, *, older_than_seconds: float | None = None, max_bytes: int | None = None, dry_run: bool = False
    ) -> Pruned:
        """Delete checkpoints of runs that are too old or too much; the server's settings say what is not given here.

        The newest good one of every run stays, and the best, the pinned and the used ones.
        """
        body = without_none({"older_than_seconds": older_than_seconds, "max_bytes": max_bytes})
        return self._read(Pruned, self._make("/v1/checkpoints:prune", {**body, "dry_run": dry_run}, None))

    def download(self, run: str, checkpoint: str, name: str, target: AnyPath) -> Path:
        """Download one file of a checkpoint to `target` and return it.

        A download that breaks off is resumed, and the checksum is verified at the end: `target` is either the complete
        file or what it was before.
        """
        return self._download(f"{_path(run, checkpoint)}/files/{segment(name)}", name, target)

    def upload_checkpoint(
        self, file: AnyPath, *, name: str | None = None, behavior: str | None = None, idempotency_key: str | None = None
    ) -> UploadedCheckpoint:
        """Store a `checkpoint.pt` of ML-Agents, for configurations to name its id in `initialize_from`.

        `behavior` is a note for people: which one it was trained for.
        """
        parameters = without_none({"name": name, "behavior": behavior})
        return self._read(UploadedCheckpoint, self._upload("/v1/checkpoints", file, parameters, idempotency_key))

    def list_uploaded_checkpoints(
        self,
        filter: str = "",  # noqa: A002
        order_by: str = "",
        limit: int | None = None,
    ) -> Iterator[UploadedCheckpoint]:
        """Iterate over uploaded checkpoints, newest first unless `order_by` says otherwise."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(UploadedCheckpoint, "/v1/checkpoints", "checkpoints", parameters, limit)

    def get_uploaded_checkpoint(self, checkpoint: str) -> UploadedCheckpoint:
        """Return one uploaded checkpoint."""
        return self._read(UploadedCheckpoint, self._get(f"/v1/checkpoints/{segment(checkpoint)}"))

    def delete_uploaded_checkpoint(self, checkpoint: str) -> None:
        """Delete an uploaded checkpoint. Refused while a run that has not ended begins with it."""
        self._delete(f"/v1/checkpoints/{segment(checkpoint)}")


def _path(run: str, checkpoint: str) -> str:
    return f"/v1/runs/{segment(run)}/checkpoints/{segment(checkpoint)}"
