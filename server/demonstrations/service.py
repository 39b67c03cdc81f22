"""Commands on demonstrations, and their request bodies: keep one, delete one, check the named ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Self

from pydantic import Field, model_validator

from ludus.config.problems import Path, join_path
from ludus.config.run import RunConfig
from ludus.config.values import DemonstrationId
from ludus.demonstrations import DemonstrationError, check_fit
from server.demonstrations.files import Inspected
from server.demonstrations.refs import DemonstrationInUse, spec_from_json, spec_to_json
from server.demonstrations.repository import Demonstration, DemonstrationRepository, ref
from server.kit.artifacts.repository import GivenUpFileRepository
from server.kit.artifacts.store import Stored
from server.kit.db.clock import now
from server.kit.db.database import Session, after_commit
from server.kit.db.texts import storable, storable_json
from server.kit.errors import InvalidConfig, Problem
from server.kit.http.fields import Name, Write


class DemonstrationMerge(Write):
    """Several demonstrations to become one."""

    demonstrations: list[DemonstrationId] = Field(min_length=1, max_length=1000)
    """Ids, in their order."""
    name: Name | None = None
    """Name of the new one; default: its id."""


class DemonstrationSubsample(Write):
    """Some episodes of a demonstration, some of its transitions, or some transitions of some episodes."""

    count: int | None = Field(default=None, ge=1, le=100_000_000)
    """Number of transitions, drawn without replacement."""
    episodes: int | None = Field(default=None, ge=1, le=100_000_000)
    """Number of complete episodes: the first ones, or drawn by `seed`."""
    every: int | None = Field(default=None, ge=1, le=100_000_000)
    """Keep every n-th transition of each episode: from its first one on, or from one drawn by `seed`."""
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Equal seeds draw equally; 0 for `count` if not given."""
    name: Name | None = None
    """Name of the new one; default: its id."""

    @model_validator(mode="after")
    def _says_what(self) -> Self:
        if self.count is not None and self.every is not None:
            raise ValueError("count and every both say which transitions: leave one of them out")
        if self.count is self.episodes is self.every is None:
            raise ValueError("say what to keep: episodes, and every or count for transitions")
        return self


class DemonstrationService:
    """Commands on demonstrations, within the caller's transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._demonstrations = DemonstrationRepository(session)

    def add(self, stored: Stored[Inspected], name: str | None, origin: Mapping[str, object]) -> Demonstration:
        """Enter a stored file; with the commit the file is kept. One without a name is called like its id."""
        inspected = stored.inspected
        row = Demonstration(
            id=stored.id,
            name=name or stored.id,
            behavior=storable(inspected.spec.name, 200),
            spec=storable_json(spec_to_json(inspected.spec)),
            format=inspected.format,
            path=stored.path,
            size=inspected.size,
            sha256=inspected.sha256,
            transitions=inspected.summary.transitions,
            episodes=inspected.summary.episodes,
            mean_return=None if inspected.summary.returns is None else inspected.summary.returns.mean,
            summary=storable_json(asdict(inspected.summary)),
            origin=dict(origin),
            created_at=now(),
        )
        after_commit(self._session, stored.keep)
        return self._demonstrations.save(row)

    def delete(self, demonstration_id: str) -> None:
        """Delete a demonstration, and give up its file.

        Raises DemonstrationNotFound, DemonstrationInUse (a run that has not ended may still fetch it).
        """
        demonstration = self._demonstrations.get(demonstration_id)
        user = self._demonstrations.live_user(demonstration_id)
        if user is not None:
            raise DemonstrationInUse(demonstration_id, user)
        GivenUpFileRepository(self._session).give_up(demonstration.path.rpartition("/")[0])
        self._demonstrations.delete(demonstration)

    def check(self, config: RunConfig, *, lock: bool = False) -> list[str]:
        """Return the ids that a configuration names; with `lock` they exist until the commit at least.

        Raises InvalidConfig, with a path for each id that does not exist, and for each that does not fit the first one
        of its behavior: all that a behavior learns from, it has to be able to see and to do. `legacy_pairing` is for
        ML-Agents' files only.
        """
        sections = config.demonstrations()
        demonstrations = self._demonstrations.existing({id_ for ids in sections.values() for id_ in ids}, lock=lock)
        behaviors: dict[Path, list[tuple[Path, str]]] = {}
        for path, ids in sections.items():
            named = behaviors.setdefault((path[:1] if path[0] == "default_settings" else path[:2]), [])
            named += [((*path, index), id_) for index, id_ in enumerate(ids)]
        problems = [problem for named in behaviors.values() for problem in _problems(named, demonstrations)]
        for path, section in config.imitating().items():
            paired = [  # in our own files the pairs are what they are
                id_
                for id_ in section.demonstrations
                if id_ in demonstrations and demonstrations[id_].format != "mlagents"
            ]
            if section.legacy_pairing and paired:
                message = (
                    f"legacy_pairing acts on ML-Agents' .demo files only, not on {', '.join(paired)}; set it to false, "
                    "or list the .demo files that these were made from"
                )
                problems.append(Problem(join_path((*path, "legacy_pairing")), "contradiction", message))
        if problems:
            raise InvalidConfig(problems)
        return sorted(demonstrations)


def _problems(named: Sequence[tuple[Path, str]], demonstrations: Mapping[str, Demonstration]) -> Iterator[Problem]:
    """Iterate over what is wrong with what a behavior names, each id with the path at which it stands."""
    first: Demonstration | None = None
    for path, id_ in named:
        place = join_path(path)
        demonstration = demonstrations.get(id_)
        if demonstration is None:
            message = (
                f"there is no demonstration {id_}; put in the id of one that `ludus demonstration list` shows, "
                "or that `ludus demonstration upload FILE` prints"
            )
            yield Problem(place, "not_found", message)
            continue
        first = first or demonstration
        try:
            check_fit(
                spec_from_json(demonstration.spec),
                spec_from_json(first.spec),
                what=f"demonstration {ref(demonstration).label}",
                whose=f"demonstration {ref(first).label}",
            )
        except DemonstrationError as error:
            yield Problem(place, "contradiction", error.problem)
