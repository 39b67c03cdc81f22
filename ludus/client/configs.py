"""Stored configurations."""

from collections.abc import Iterator, Mapping
from typing import Any

from ludus.client.transport import Resource, segment, without_none
from ludus.schemas import ConfigDiff, ConfigSummary, ConfigUpgrade, ConfigVersion


class Configs(Resource):
    """Requests about stored configurations."""

    def create(
        self,
        name: str,
        config: Mapping[str, Any] | str,
        *,
        description: str = "",
        idempotency_key: str | None = None,
    ) -> ConfigVersion:
        """Store a configuration under a name. If its newest version is equal, that version is returned."""
        body = {"config": config, "description": description}
        return self._transport.post(ConfigVersion, f"/v1/configs/{segment(name)}/versions", body, idempotency_key)

    def list(self) -> Iterator[ConfigSummary]:
        """Iterate over the names of stored configurations."""
        return self._transport.pages(ConfigSummary, "/v1/configs")

    def list_versions(self, name: str) -> Iterator[ConfigSummary]:
        """Iterate over the versions of a stored configuration, newest first."""
        return self._transport.pages(ConfigSummary, f"/v1/configs/{segment(name)}/versions")

    def get(self, name: str, version: int | None = None) -> ConfigVersion:
        """Return one version of a stored configuration; None is the newest one."""
        which = "latest" if version is None else version
        return self._transport.get(ConfigVersion, f"/v1/configs/{segment(name)}/versions/{which}")

    def diff(self, name: str, old: int, new: int | None = None, *, run: str | None = None) -> ConfigDiff:
        """Compare the resolved forms of two versions of a stored configuration.

        With `run` instead of `new`: a version and what this run was created with.
        """
        query = without_none(old=old, new=new, run=run)
        return self._transport.get(ConfigDiff, f"/v1/configs/{segment(name)}:diff", query)

    def upgrade(
        self,
        config: Mapping[str, Any] | str,
        *,
        curriculum: Mapping[str, Any] | str | None = None,
        sampler: Mapping[str, Any] | str | None = None,
    ) -> ConfigUpgrade:
        """Convert a configuration of an older ML-Agents to the present format; nothing is stored.

        `curriculum` (by behavior) and `sampler` are the separate files of releases up to 0.16.
        """
        body = without_none(config=config, curriculum=curriculum, sampler=sampler)
        return self._transport.post(ConfigUpgrade, "/v1/configs:upgrade", body)
