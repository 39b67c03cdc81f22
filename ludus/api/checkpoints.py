"""Checkpoints: of runs, and of other programs."""

from collections.abc import Iterator
from pathlib import Path

from ludus.api.transport import Transport, segment, without_none
from ludus.records import (
    Checkpoint,
    UploadedCheckpoint,
)


class Checkpoints(Transport):
    """Requests about checkpoints."""

    def checkpoints(self, run: str) -> list[Checkpoint]:
        """Return a run's checkpoints, newest first."""
        return list(self._items(Checkpoint, f"/v1/runs/{segment(run)}/checkpoints", "checkpoints"))

    def get_checkpoint(self, run: str, checkpoint: str = "latest") -> Checkpoint:
        """Return one checkpoint by its id, or the `latest`."""
        return self._read(Checkpoint, self._get(f"/v1/runs/{segment(run)}/checkpoints/{segment(checkpoint)}"))

    def download(self, run: str, checkpoint: str, name: str, target: Path) -> Path:
        """Download one file of a checkpoint to `target` and return it.

        The checksum is verified first: `target` is either the complete file or what it was before.
        """
        path = f"/v1/runs/{segment(run)}/checkpoints/{segment(checkpoint)}/files/{segment(name)}"
        return self._download(path, name, target)

    def upload_checkpoint(
        self, file: Path, *, name: str | None = None, behavior: str | None = None, idempotency_key: str | None = None
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
