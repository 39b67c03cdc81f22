"""Reads and writes stored configurations. Versions are only ever added."""

from typing import Final

from sqlalchemy import func, select, tuple_
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import defer

from ludus.json_values import JsonObject
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
_WITHOUT_DOCUMENTS: Final = [
    defer(column, raiseload=True) for column in (ConfigVersion.source, ConfigVersion.document, ConfigVersion.resolved)
]

ATTEMPTS: Final = 5
"""Tries to get a version number when several writers store under one name at once."""


class ConfigRepository(Repository):
    """Stored configurations, seen through one session."""

    def get_or_raise(self, name: str, version: int | None = None) -> ConfigVersion:
        """Return a version, the newest if none is given. Raises ConfigNotFound, NameAmbiguous."""
        if project_of(self._session) is None:  # the session sees all projects, and several may have this name
            owners = select(ConfigVersion.project).where(ConfigVersion.name == name).distinct()
            projects: dict[str, str | None] = dict.fromkeys(self._session.scalars(owners))
            if len(projects) > 1:
                raise NameAmbiguous("configuration", name, projects)
        config = self.newest(name, version)
        if config is None:
            raise ConfigNotFound(name, version)
        return config

    def newest(self, name: str, version: int | None = None) -> ConfigVersion | None:
        """Return the newest version of a name, or the one with this number; None if there is none."""
        statement = select(ConfigVersion).where(ConfigVersion.name == name).order_by(ConfigVersion.version.desc())
        if version is not None:
            statement = statement.where(ConfigVersion.version == version)
        return self._session.scalars(statement.limit(1)).first()

    def list_names(self, query: ListQuery) -> Page[ConfigVersion]:
        """Return one page of the newest versions of all names, without their documents."""
        newest = select(ConfigVersion.project, ConfigVersion.name, func.max(ConfigVersion.version))
        newest = newest.group_by(ConfigVersion.project, ConfigVersion.name)
        identity = tuple_(ConfigVersion.project, ConfigVersion.name, ConfigVersion.version)
        statement = select(ConfigVersion).where(identity.in_(newest)).options(*_WITHOUT_DOCUMENTS)
        return select_page(self._session, statement, query, LIST_FIELDS, ConfigVersion.key)

    def list_versions(self, name: str, query: ListQuery) -> Page[ConfigVersion]:
        """Return one page of the versions of a name, without their documents.

        Raises ConfigNotFound, NameAmbiguous.
        """
        self.get_or_raise(name)
        statement = select(ConfigVersion).where(ConfigVersion.name == name).options(*_WITHOUT_DOCUMENTS)
        return select_page(self._session, statement, query, LIST_FIELDS, ConfigVersion.version)

    def insert(
        self, name: str, *, source: str, document: JsonObject, resolved: JsonObject, digest: str, description: str
    ) -> tuple[ConfigVersion, bool]:
        """Store a version unless the newest one is equal; return what is stored, and whether it is new.

        Several writers may race for one number: the loser reads the newest version again.
        """
        for attempt in range(ATTEMPTS):
            newest = self.newest(name)
            if newest is not None and newest.digest == digest:
                return newest, False
            stored = ConfigVersion(
                name=name,
                version=1 if newest is None else newest.version + 1,
                source=source,
                document=document,
                resolved=resolved,
                digest=digest,
                description=description,
                created_at=self.clock(),
            )
            try:
                with self._session.begin_nested():
                    self._session.add(stored)
                break
            except IntegrityError:
                if attempt == ATTEMPTS - 1:
                    raise
        return stored, True
