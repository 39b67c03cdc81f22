"""Stored configurations."""

from collections.abc import Iterator, Mapping
from typing import Any

from ludus.client.transport import Transport, segment, without_none
from ludus.schemas import ConfigDiff, ConfigSummary, ConfigUpgrade, ConfigVersion


class Configs(Transport):
    """Requests about stored configurations."""

    def create_config(
        self,
        name: str,
        config: Mapping[str, Any] | str,
        *,
        description: str = "",
        idempotency_key: str | None = None,
    ) -> ConfigVersion:
        """Store a configuration under a name. Storing an equal one again returns the version that exists."""
        body = {"config": config, "description": description}
        return self._read(ConfigVersion, self._post(f"/v1/configs/{segment(name)}/versions", body, idempotency_key))

    def list_configs(self) -> Iterator[ConfigSummary]:
        """Iterate over the names of stored configurations."""
        return self._items(ConfigSummary, "/v1/configs", "configs")

    def list_config_versions(self, name: str) -> Iterator[ConfigSummary]:
        """Iterate over the versions of a stored configuration, newest first."""
        return self._items(ConfigSummary, f"/v1/configs/{segment(name)}/versions", "versions")

    def get_config(self, name: str, version: int | None = None) -> ConfigVersion:
        """Return one version of a stored configuration, the newest unless `version` says another."""
        which = "latest" if version is None else str(version)
        return self._read(ConfigVersion, self._get(f"/v1/configs/{segment(name)}/versions/{which}"))

    def diff_configs(self, name: str, old: int, new: int) -> ConfigDiff:
        """Compare the resolved forms of two versions of a stored configuration."""
        parameters = {"old": str(old), "new": str(new)}
        return self._read(ConfigDiff, self._get(f"/v1/configs/{segment(name)}:diff", parameters))

    def upgrade_config(
        self,
        config: Mapping[str, Any] | str,
        *,
        curriculum: Mapping[str, Any] | str | None = None,
        sampler: Mapping[str, Any] | str | None = None,
    ) -> ConfigUpgrade:
        """Bring a configuration of an older ML-Agents into the format of today; nothing is stored.

        `curriculum` (by behavior) and `sampler` are the files that releases up to 0.16 had beside it.
        """
        body = {"config": config} | without_none({"curriculum": curriculum, "sampler": sampler})
        return self._read(ConfigUpgrade, self._post("/v1/configs:upgrade", body))
