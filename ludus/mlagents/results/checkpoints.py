"""The checkpoints of a run in its results folder: the newest ones of each behavior, as ML-Agents keeps them."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from ludus.client import Client, NotFound, ProblemAnswer
from ludus.mlagents.results import console
from ludus.mlagents.results.folder import Folder, Journal, pack, place_copy
from ludus.protocol.spec import file_name
from ludus.schemas import Checkpoint

STATE_FILES = ("state.safetensors", "state.json")
GONE = frozenset({"checkpoint_deleted", "artifact_not_found"})
"""Codes of checkpoints that retention has deleted: with their row, or just before that."""


class CheckpointCopies:
    """Copies of the newest checkpoints of a run and of the runs that it continues."""

    def __init__(
        self, client: Client, folder: Folder, journal: Journal, say: Callable[[str], None], keep: Callable[[str], int]
    ) -> None:
        """`keep` returns the number of checkpoints of a behavior that stay in the folder."""
        self.due = True
        """Whether the server may have a checkpoint that is not here."""
        self._client = client
        self._folder = folder
        self._journal = journal
        self._say = say
        self._keep = keep
        self._newest_first: list[Checkpoint] = []

    def sync(self) -> None:
        """Download the newest checkpoints of each behavior, and remove the older ones that Ludus wrote."""
        runs = (self._journal.run, *reversed(self._journal.former))
        self._newest_first = [checkpoint for run in runs for checkpoint in self.of_run(run)]
        self.due = False
        for behavior in sorted({name for checkpoint in self._newest_first for name in checkpoint.steps}):
            journal = self._journal.of(behavior)
            newest = self.newest(behavior)
            for step in sorted(newest.keys() - journal.checkpoints.keys()):
                files = self._fetch(behavior, step, newest[step])
                if files:
                    journal.checkpoints[step] = files
                    self._folder.write_journal(self._journal)
            for step in sorted(journal.checkpoints.keys() - newest.keys()):
                for file in journal.checkpoints.pop(step):
                    (self._folder.path / file).unlink(missing_ok=True)
            last = max(journal.checkpoints, default=0)
            copies = {".onnx": self._folder.model(behavior), ".pt": self._folder.behavior(behavior) / "checkpoint.pt"}
            for suffix, target in copies.items():
                source = self._folder.checkpoint(behavior, last, suffix)
                if journal.checkpoints and source.exists() and not (target.exists() and target.samefile(source)):
                    place_copy(source, target)

    def of_run(self, run: str) -> Sequence[Checkpoint]:
        """Return a run's checkpoints, newest first; none of a former run that the server has deleted."""
        try:
            return self._client.checkpoints.list(run)
        except NotFound:
            if run == self._journal.run:
                raise
            return []

    def newest(self, behavior: str) -> dict[int, Checkpoint]:
        """Return the checkpoints to keep, by the behavior's step; of several with one step the newest."""
        keep = self._keep(behavior)
        by_step: dict[int, Checkpoint] = {}
        for checkpoint in self._newest_first:
            step = checkpoint.steps.get(behavior)
            if step is not None and step not in by_step and len(by_step) < keep:
                by_step[step] = checkpoint
        return by_step

    def _fetch(self, behavior: str, step: int, checkpoint: Checkpoint) -> list[str]:
        """Download a behavior's part of a checkpoint; return the files, none if retention deleted them meanwhile."""
        names = {file.name for file in checkpoint.files}
        model, state = (self._folder.checkpoint(behavior, step, suffix) for suffix in (".onnx", ".pt"))
        name = f"{file_name(behavior)}.onnx"
        try:
            if name in names:
                self._client.checkpoints.download(checkpoint.run_id, checkpoint.id, name, model)
            if names.issuperset(STATE_FILES):
                # The state of the run, which is that of all behaviors, as one file.
                state.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=state.parent, prefix=".state-") as folder:
                    targets = [Path(folder, file) for file in STATE_FILES]
                    for target in targets:
                        self._client.checkpoints.download(checkpoint.run_id, checkpoint.id, target.name, target)
                    pack(targets, state)
        except ProblemAnswer as error:
            if error.code not in GONE:
                raise
            self.due = True
            model.unlink(missing_ok=True)
            return []
        if name in names:
            self._say(console.info(f"Exported {model.as_posix()}"))
        return [path.relative_to(self._folder.path).as_posix() for path in (model, state) if path.exists()]
