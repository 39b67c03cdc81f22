"""TensorBoard's event files, as ML-Agents writes them: one per behavior, scalars and the hyperparameters as text.

Written with TensorBoard's own records and messages (`pip install tensorboard`; neither torch nor TensorFlow). Appending
is synchronous: `sync` writes everything to the disk and returns the file's size, so that the journal knows the points
that a crash left incomplete. TensorBoard's own means, an event that says that the run was started again at a step,
hides the points that a later attempt of the run supersedes.
"""

import itertools
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

FILE_VERSION = "brain.Event:2"


class TensorBoardMissing(Exception):
    """The package `tensorboard` isn't installed."""

    def __init__(self) -> None:
        super().__init__(
            "TensorBoard's event files are not written: the package `tensorboard` is not installed "
            "(pip install tensorboard); everything else is"
        )


@dataclass(frozen=True)
class Scalar:
    """One point of a metric; `time` in seconds since 1970-01-01 UTC."""

    tag: str
    step: int
    value: float
    time: float


class EventWriter:
    """Appends to one event file."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        """Create a file; or open one that has `size` good bytes, and cut off the bytes after them.

        Raises TensorBoardMissing, and OSError where the file can't be written or is shorter than that.
        """
        try:
            from tensorboard.compat.proto import (  # noqa: PLC0415  an extra that may be missing
                event_pb2,
                summary_pb2,
                tensor_pb2,
                tensor_shape_pb2,
                types_pb2,
            )
            from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise TensorBoardMissing from error
        self._events, self._summaries, self._types = event_pb2, summary_pb2, types_pb2
        self._tensors, self._shapes = tensor_pb2, tensor_shape_pb2
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO
        if size is None:
            self._file = path.open("xb")
        else:
            self._file = path.open("r+b")
            if path.stat().st_size < size:
                self._file.close()
                raise OSError(f"{path} has less than the {size} bytes that were written")
            self._file.truncate(size)
            self._file.seek(size)
        self._records = RecordWriter(self._file)
        if size is None:
            self._write(event_pb2.Event(wall_time=time.time(), file_version=FILE_VERSION))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def scalars(self, points: Sequence[Scalar]) -> None:
        """Append points."""
        for point in points:
            value = self._summaries.Summary.Value(tag=point.tag, simple_value=point.value)
            summary = self._summaries.Summary(value=[value])
            self._write(self._events.Event(wall_time=point.time, step=point.step, summary=summary))

    def text(self, tag: str, text: str) -> None:
        """Append a text, at step 0."""
        data = self._summaries.SummaryMetadata.PluginData(plugin_name="text", content=b"")
        tensor = self._tensors.TensorProto(
            dtype=self._types.DT_STRING,
            string_val=[text.encode()],
            tensor_shape=self._shapes.TensorShapeProto(dim=[self._shapes.TensorShapeProto.Dim(size=1)]),
        )
        value = self._summaries.Summary.Value(
            tag=f"{tag}/text_summary", metadata=self._summaries.SummaryMetadata(plugin_data=data), tensor=tensor
        )
        self._write(self._events.Event(wall_time=time.time(), summary=self._summaries.Summary(value=[value])))

    def restart(self, step: int) -> None:
        """Hide all points from `step` on: the run was resumed before it, and writes them again."""
        log = self._events.SessionLog(status=self._events.SessionLog.START)
        self._write(self._events.Event(wall_time=time.time(), step=step, session_log=log))

    def sync(self) -> int:
        """Write everything to the disk and return the file's size in bytes."""
        self._records.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def _write(self, event: "object") -> None:
        self._records.write(event.SerializeToString())  # type: ignore[attr-defined]  # the messages are untyped


def new_path(folder: Path) -> Path:
    """Return a new event file's path: by time, host, process and a number, as TensorBoard names them."""
    start = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
    paths = (folder / f"{start}.{number}" for number in itertools.count())
    return next(path for path in paths if not path.exists())
