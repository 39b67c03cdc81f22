"""Runs that are to be created: their configuration is read, resolved, and checked against what is stored."""

from collections.abc import Mapping
from dataclasses import replace

from server.assessments.service import AssessmentService
from server.checkpoints.service import CheckpointService
from server.config.document import Document
from server.demonstrations.service import DemonstrationService
from server.kit.db.database import Session
from server.ladders.service import LadderService
from server.runs.repository import NewRun
from server.runs.stored_configs.repository import ConfigRepository
from server.runs.stored_configs.service import ConfigService, Prepared


def prepare(
    session: Session,
    document: Document | None = None,
    *,
    name: str | None = None,
    version: int | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Prepared:
    """Read, resolve and check the configuration of a run; of a stored one, its name and version.

    Raises InvalidConfig, ConfigNotFound.
    """
    prepared = ConfigService(ConfigRepository(session)).prepare(
        document, name=name, version=version, overrides=overrides, complete=AssessmentService(session).complete
    )
    DemonstrationService(session).check(prepared.config)
    CheckpointService(session).check(prepared.config)
    LadderService(session).check(prepared.config)
    return prepared


def bind(session: Session, new: NewRun) -> NewRun:
    """Return a run with what its configuration names, which stays until the commit at least. Raises InvalidConfig."""
    return replace(
        new,
        demonstrations=DemonstrationService(session).check(new.config, lock=True),
        checkpoints=CheckpointService(session).check(new.config, lock=True),
        ladder=LadderService(session).check(new.config, lock=True),
    )
