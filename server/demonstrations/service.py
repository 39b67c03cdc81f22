"""Commands on demonstrations: keep one, delete one, and check those that a configuration names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ludus.config.problems import Path, join_path
from ludus.config.run import RunConfig
from ludus.demonstrations import DemonstrationError, check_fit
from server.demonstrations.errors import DemonstrationInUse
from server.demonstrations.files import Inspected
from server.demonstrations.models import Demonstration
from server.demonstrations.repository import DemonstrationRepository, ref
from server.demonstrations.specs import spec_from_json, spec_to_json
from server.kit.artifacts.publication import Stored
from server.kit.artifacts.repository import GivenUpFileRepository
from server.kit.db.clock import now
from server.kit.db.database import Session, after_commit
from server.kit.db.texts import storable, storable_json
from server.kit.errors import InvalidConfig, Problem


class DemonstrationService:
    """Commands on demonstrations, within the caller's transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._demonstrations = DemonstrationRepository(session)

    def add(self, stored: Stored[Inspected], name: str | None, origin: Mapping[str, Any]) -> Demonstration:
        """Enter a stored file; with the commit the file is kept. One without a name is called like its id."""
        found = stored.inspected
        row = Demonstration(
            id=stored.id,
            name=name or stored.id,
            behavior=storable(found.spec.name, 200),
            spec=storable_json(spec_to_json(found.spec)),
            format=found.format,
            path=stored.path,
            size=found.size,
            sha256=found.sha256,
            transitions=found.summary.transitions,
            episodes=found.summary.episodes,
            mean_return=None if found.summary.returns is None else found.summary.returns.mean,
            summary=storable_json(asdict(found.summary)),
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
        found = self._demonstrations.existing({each for ids in sections.values() for each in ids}, lock=lock)
        behaviors: dict[Path, list[tuple[Path, str]]] = {}
        for path, ids in sections.items():
            named = behaviors.setdefault((path[:1] if path[0] == "default_settings" else path[:2]), [])
            named += [((*path, index), each) for index, each in enumerate(ids)]
        problems = [problem for named in behaviors.values() for problem in _problems(named, found)]
        for path, section in config.imitating().items():
            if section.legacy_pairing:
                problems += _unpaired(path, [found[each] for each in section.demonstrations if each in found])
        if problems:
            raise InvalidConfig(problems)
        return sorted(found)


def _unpaired(path: Path, demonstrations: Sequence[Demonstration]) -> Iterator[Problem]:
    """Yield what `legacy_pairing` cannot act on: in our own files the pairs are what they are."""
    others = [each.id for each in demonstrations if each.format != "mlagents"]
    if others:
        message = (
            f"legacy_pairing acts on ML-Agents' .demo files only, not on {', '.join(others)}; set it to false, or list "
            "the .demo files that these were made from"
        )
        yield Problem(join_path((*path, "legacy_pairing")), "contradiction", message)


def _problems(named: Sequence[tuple[Path, str]], found: Mapping[str, Demonstration]) -> Iterator[Problem]:
    """Iterate over what is wrong with what a behavior names, each id with the path at which it stands."""
    first: Demonstration | None = None
    for path, each in named:
        here = join_path(path)
        demonstration = found.get(each)
        if demonstration is None:
            message = (
                f"there is no demonstration {each}; put in the id of one that `ludus demonstration list` shows, "
                "or that `ludus demonstration upload FILE` prints"
            )
            yield Problem(here, "not_found", message)
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
            yield Problem(here, "contradiction", error.problem)
