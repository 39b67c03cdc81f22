"""Prepares a `match` or `evaluate` run: names of checkpoints become ids, and derived keys are added."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from ludus.config.assessment import CHECKPOINT_KEYS
from ludus.config.values import CHECKPOINT_ID
from server.assessments.repository import AssessmentRepository
from server.checkpoints.models import Checkpoint
from server.checkpoints.refs import AliasNotFound
from server.checkpoints.repository import AliasRepository, CheckpointRepository, InitialCheckpoints
from server.kit.db.database import Session
from server.kit.db.texts import JsonObject
from server.kit.errors import CheckpointNotFound, InvalidConfig, Problem, RunNotFound
from server.runs.repository import RunRepository

LATEST: Final = "latest"
SECTIONS: Final = ("match", "evaluate")


class AssessmentService:
    """Prepares documents, within the caller's transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def complete(self, document: Mapping[str, object]) -> JsonObject:
        """Return a parsed document with the checkpoints of its assessment as ids, its behavior and `behaviors`.

        Documents without an assessment come back as they are. Raises InvalidConfig, with a path for each name that
        means no checkpoint.
        """
        completed = dict(document)
        for section in SECTIONS:
            if isinstance(completed.get(section), dict):
                completed = self._completed(completed, section)
        return completed

    def _completed(self, document: JsonObject, section: str) -> JsonObject:
        settings = dict(document[section])
        problems: list[Problem] = []
        checkpoints: dict[str, Checkpoint] = {}
        named = {key: settings[key] for key in CHECKPOINT_KEYS if isinstance(settings.get(key), str)}
        for key, name in named.items():
            try:
                checkpoints[key] = self._resolve(name)
                settings[key] = checkpoints[key].id
            except (AliasNotFound, CheckpointNotFound, RunNotFound, _Uploaded) as error:
                message = f"{error.message[:1].lower()}{error.message[1:]}".rstrip(".")  # as it follows a path
                problems.append(Problem(f"{section}.{key}", "not_found", message))
        if problems:
            raise InvalidConfig(problems)
        if not checkpoints:
            return document
        if settings.get("behavior") is None:
            first = next(iter(checkpoints.values()))
            names = sorted(first.steps)
            if len(names) != 1:
                message = f"is missing; checkpoint {first.id} has {', '.join(names)}: name one of them"
                raise InvalidConfig([Problem(f"{section}.behavior", "missing", message)])
            settings["behavior"] = names[0]
        problems = list(_without(section, checkpoints, settings["behavior"]))
        if problems:
            raise InvalidConfig(problems)
        completed = {**document, section: settings}
        if document.get("behaviors") is None:
            first = next(iter(checkpoints.values()))
            policy = AssessmentRepository(self._session).policy(first.id, settings["behavior"])
            network = policy.network_settings.model_dump(mode="json")
            completed["behaviors"] = {settings["behavior"]: {"network_settings": network}}
        return completed

    def _resolve(self, name: str) -> Checkpoint:
        """Return the checkpoint that an id, an alias or RUN/CHECKPOINT means.

        Raises AliasNotFound, RunNotFound, CheckpointNotFound.
        """
        checkpoints = CheckpointRepository(self._session)
        if "/" in name:
            run, _, which = name.rpartition("/")
            run_id = RunRepository(self._session).id_of(run)
            if which != LATEST:
                return checkpoints.get(run_id, which)
            newest = checkpoints.newest(run_id)
            if newest is None:
                raise CheckpointNotFound(name)
            return newest
        if not re.match(CHECKPOINT_ID, name):
            name = AliasRepository(self._session).get(name).checkpoint_id
        checkpoint = InitialCheckpoints(self._session).existing({name}, lock=False).get(name)
        if checkpoint is None:
            raise CheckpointNotFound(name)
        if not isinstance(checkpoint, Checkpoint):
            raise _Uploaded(name)
        return checkpoint


class _Uploaded(Exception):
    """The checkpoint was uploaded."""

    def __init__(self, checkpoint_id: str) -> None:
        self.message = (
            f"Checkpoint {checkpoint_id} was uploaded, and how its network is built is not known; begin a run with it "
            "(initialize_from), and name a checkpoint of that run."
        )
        super().__init__(self.message)


def _without(section: str, checkpoints: Mapping[str, Checkpoint], behavior: object) -> Iterator[Problem]:
    """Yield a mistake for each checkpoint that does not have the behavior."""
    for key, checkpoint in checkpoints.items():
        if isinstance(behavior, str) and behavior not in checkpoint.steps:
            names = ", ".join(sorted(checkpoint.steps))
            message = f"checkpoint {checkpoint.id} has no behavior {behavior!r}, but {names}; name another checkpoint"
            yield Problem(f"{section}.{key}", "contradiction", message)
