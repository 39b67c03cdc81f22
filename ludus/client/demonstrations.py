"""Demonstrations: recordings of good behavior."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ludus.client.transport import Resource, segment, without_none
from ludus.paths import AnyPath
from ludus.schemas import Demonstration, DemonstrationSummary


class Demonstrations(Resource):
    """Requests about demonstrations."""

    def upload(self, file: AnyPath, *, name: str | None = None, idempotency_key: str | None = None) -> Demonstration:
        """Store a recording: an ML-Agents `.demo` file, or a `.npz` of Ludus' own. The server reads all of it."""
        parameters = without_none(name=name)
        return self._transport.upload(Demonstration, "/v1/demonstrations", file, parameters, idempotency_key)

    def list(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[DemonstrationSummary]:
        """Iterate over demonstrations, newest first unless `order_by` says otherwise."""
        return self._transport.pages(
            DemonstrationSummary, "/v1/demonstrations", limit, filter=filter, order_by=order_by
        )

    def get(self, demonstration: str) -> Demonstration:
        """Return one demonstration with its summary."""
        return self._transport.get(Demonstration, f"/v1/demonstrations/{segment(demonstration)}")

    def merge(
        self, demonstrations: Sequence[str], *, name: str | None = None, idempotency_key: str | None = None
    ) -> Demonstration:
        """Create one demonstration from all episodes of several, in their order."""
        body = without_none(demonstrations=list(demonstrations), name=name)
        return self._transport.post(Demonstration, "/v1/demonstrations:merge", body, idempotency_key, slow=True)

    def subsample(
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
        """Create a demonstration from some `episodes` of another one: `count` transitions of them, or every `every`-th.

        Without a seed the first episodes are taken, and every n-th transition from an episode's first one on; with one
        they are drawn. `count` transitions are always drawn. Equal seeds draw equally.
        """
        body = without_none(count=count, episodes=episodes, every=every, seed=seed, name=name)
        path = f"/v1/demonstrations/{segment(demonstration)}:subsample"
        return self._transport.post(Demonstration, path, body, idempotency_key, slow=True)

    def download(self, demonstration: str, target: AnyPath) -> Path:
        """Download a demonstration's file to `target` and return it; its checksum is verified first."""
        path = f"/v1/demonstrations/{segment(demonstration)}/file"
        return self._transport.download(path, demonstration, target)

    def delete(self, demonstration: str) -> None:
        """Delete a demonstration. Refused while a run that has not ended uses it."""
        self._transport.delete(f"/v1/demonstrations/{segment(demonstration)}")
