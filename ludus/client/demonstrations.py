"""Demonstrations: recordings of good behavior."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ludus.client.transport import Transport, segment, without_none
from ludus.paths import AnyPath
from ludus.schemas import Demonstration


class Demonstrations(Transport):
    """Requests about demonstrations."""

    def upload_demonstration(
        self, file: AnyPath, *, name: str | None = None, idempotency_key: str | None = None
    ) -> Demonstration:
        """Store a recording: an ML-Agents `.demo` file, or a `.npz` of Ludus' own. The server reads all of it."""
        parameters = without_none({"name": name})
        return self._read(Demonstration, self._upload("/v1/demonstrations", file, parameters, idempotency_key))

    def list_demonstrations(
        self,
        filter: str = "",  # noqa: A002
        order_by: str = "",
        limit: int | None = None,
    ) -> Iterator[Demonstration]:
        """Iterate over demonstrations, newest first unless `order_by` says otherwise."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(Demonstration, "/v1/demonstrations", "demonstrations", parameters, limit)

    def get_demonstration(self, demonstration: str) -> Demonstration:
        """Return one demonstration with its summary."""
        return self._read(Demonstration, self._get(f"/v1/demonstrations/{segment(demonstration)}"))

    def merge_demonstrations(
        self, demonstrations: Sequence[str], *, name: str | None = None, idempotency_key: str | None = None
    ) -> Demonstration:
        """Make one demonstration of several: all their episodes, in this order."""
        body = without_none({"demonstrations": list(demonstrations), "name": name})
        return self._read(Demonstration, self._make("/v1/demonstrations:merge", body, idempotency_key))

    def subsample_demonstration(
        self,
        demonstration: str,
        count: int | None = None,
        *,
        episodes: int | None = None,
        every: int | None = None,
        seed: int | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> Demonstration:
        """Make a demonstration of some of another one's `episodes`, and of these `count` transitions or `every` n-th.

        Without a seed the first episodes are taken, and every n-th transition from an episode's first one on; with one
        they are drawn. `count` transitions are always drawn. Equal seeds draw equally.
        """
        body = without_none({"count": count, "episodes": episodes, "every": every, "seed": seed, "name": name})
        path = f"/v1/demonstrations/{segment(demonstration)}:subsample"
        return self._read(Demonstration, self._make(path, body, idempotency_key))

    def download_demonstration(self, demonstration: str, target: AnyPath) -> Path:
        """Download a demonstration's file to `target` and return it; its checksum is verified first."""
        return self._download(f"/v1/demonstrations/{segment(demonstration)}/file", demonstration, target)

    def delete_demonstration(self, demonstration: str) -> None:
        """Delete a demonstration. Refused while a run that has not ended uses it."""
        self._delete(f"/v1/demonstrations/{segment(demonstration)}")
