"""Reads and writes stored configurations. Versions are only ever added."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import func, select, tuple_
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import defer

from server.kit.db.keyset import by_name, select_page
from server.kit.db.projects import project_of
from server.kit.db.repository import Repository
from server.kit.errors import ConfigNotFound, NameAmbiguous
from server.kit.listing import ListQuery, Page
from server.runs.stored_configs.models import ConfigVersion

LIST_FIELDS: Final = by_name(
    ConfigVersion.name, ConfigVersion.version, ConfigVersion.description, ConfigVersion.created_at
)
"""Columns by which lists can be filtered and sorted."""

ATTEMPTS: Final = 5
"""Tries to get a version number when several writers store under one name at once."""


@dataclass(frozen=True, slots=True)
class NewConfigVersion:
    """A version that is to be stored; see `ConfigVersion` for the fields."""

    name: str
    source: str
    document: dict[str, Any]
    resolved: dict[str, Any]
    digest: str
    description: str


class ConfigRepository(Repository):
    """Stored configurations, seen through one session."""

    def get_or_raise(self, name: str, version: int | None = None) -> ConfigVersion:
        """Return a version, the newest if none is given. Raises ConfigNotFound, NameAmbiguous."""
        self._refuse_ambiguous(name)
        found = self.newest(name) if version is None else self._version(name, version)
        if found is None:
            raise ConfigNotFound(name, version)
        return found

    def newest(self, name: str) -> ConfigVersion | None:
        """Return the newest version of a name, None if there is none."""
        statement = select(ConfigVersion).where(ConfigVersion.name == name).order_by(ConfigVersion.version.desc())
        return self._session.scalars(statement.limit(1)).first()

    def _version(self, name: str, version: int) -> ConfigVersion | None:
        same = select(ConfigVersion).where(ConfigVersion.name == name, ConfigVersion.version == version)
        return self._session.scalars(same.limit(1)).first()

    def _refuse_ambiguous(self, name: str) -> None:
        """Raise NameAmbiguous if the session sees all projects, and several of them have this name."""
        if project_of(self._session) is None:
            found = self._session.scalars(select(ConfigVersion.project).where(ConfigVersion.name == name).distinct())
            projects: dict[str, str | None] = dict.fromkeys(found)
            if len(projects) > 1:
                raise NameAmbiguous("configuration", name, projects)

    def list_names(self, query: ListQuery) -> Page[ConfigVersion]:
        """Return one page of the newest versions of all names, without their documents."""
        newest = select(ConfigVersion.project, ConfigVersion.name, func.max(ConfigVersion.version))
        newest = newest.group_by(ConfigVersion.project, ConfigVersion.name)
        statement = select(ConfigVersion).where(_identity().in_(newest)).options(*_without_documents())
        return select_page(self._session, statement, query, LIST_FIELDS, ConfigVersion.key)

    def list_versions(self, name: str, query: ListQuery) -> Page[ConfigVersion]:
        """Return one page of the versions of a name, without their documents.

        Raises ConfigNotFound, NameAmbiguous.
        """
        self.get_or_raise(name)
        statement = select(ConfigVersion).where(ConfigVersion.name == name).options(*_without_documents())
        return select_page(self._session, statement, query, LIST_FIELDS, ConfigVersion.version)

    def insert(self, new: NewConfigVersion) -> tuple[ConfigVersion, bool]:
        """Store a version unless the newest one is equal; return what is stored, and whether it is new.

        Several writers may race for one number: the loser reads the newest version again.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return self._insert(new)
            except IntegrityError:
                continue
        return self._insert(new)

    def _insert(self, new: NewConfigVersion) -> tuple[ConfigVersion, bool]:
        newest = self.newest(new.name)
        if newest is not None and newest.digest == new.digest:
            return newest, False
        stored = ConfigVersion(
            name=new.name,
            version=1 if newest is None else newest.version + 1,
            source=new.source,
            document=new.document,
            resolved=new.resolved,
            digest=new.digest,
            description=new.description,
            created_at=self.clock(),
        )
        with self._session.begin_nested():
            self._session.add(stored)
        return stored, True


def _identity() -> Any:
    return tuple_(ConfigVersion.project, ConfigVersion.name, ConfigVersion.version)


def _without_documents() -> list[Any]:
    heavy = (ConfigVersion.source, ConfigVersion.document, ConfigVersion.resolved)
    return [defer(column, raiseload=True) for column in heavy]
