"""Stored configurations: names with immutable versions."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from server.app.services import CommandDep, DatabaseDep
from server.configs.repository import ConfigRepository
from server.configs.schemas import (
    ConfigChange,
    ConfigCreate,
    ConfigDiff,
    ConfigDrop,
    ConfigPage,
    ConfigProblem,
    ConfigRead,
    ConfigRewrite,
    ConfigSummary,
    ConfigUpgrade,
    ConfigUpgradeRequest,
    ConfigVersionPage,
)
from server.configs.service import ConfigService, Stored, upgrade_config
from server.kit.errors import ConfigNotFound, InvalidConfig, NameAmbiguous
from server.kit.http import filters
from server.kit.http.bodies import EXAMPLE, BodyDep, declare_body
from server.kit.http.errors import BodyInvalid, UnsupportedMediaType, problems
from server.kit.http.fields import ConfigName, Text, Version
from server.kit.http.filters import Field
from server.kit.http.idempotency import COMMAND_PROBLEMS, Answer
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep
from server.kit.listing import Order

router = APIRouter(prefix="/v1/configs", tags=["configs"])

_FILTERS = {
    "name": Field(filters.word),
    "version": Field(filters.integer),
    "description": Field(filters.word),
    "created_at": Field(filters.time),
}
NAMES = ListForm("configs", _FILTERS, frozenset({"name", "created_at"}), Order("name", descending=False))
VERSIONS = ListForm("config-versions", _FILTERS, frozenset({"version", "created_at"}), Order("version"))

OLD_EXAMPLE = """\
default:
  trainer: ppo
  use_recurrent: false
CartPole:
  max_steps: 150000
"""
"""A configuration of an older release, for the documentation."""

VersionKey = Annotated[str, Path(pattern="^(latest|[1-9][0-9]{0,8})$", description="A version's number, or `latest`.")]


@router.get("", response_model=ConfigPage, responses=problems(*LIST_PROBLEMS))
def list_configs(listing: ListingDep, database: DatabaseDep) -> ConfigPage:
    """List the names of stored configurations, each with its newest version."""
    query = listing.query(NAMES)
    with database.read() as session:
        page = ConfigRepository(session).list_names(query)
        configs = [ConfigSummary.model_validate(each) for each in page.items]
    return ConfigPage(configs=configs, next_page_token=listing.token(NAMES, page))


@router.post(
    ":upgrade",
    response_model=ConfigUpgrade,
    responses=problems(InvalidConfig, UnsupportedMediaType, BodyInvalid),
    openapi_extra=declare_body(ConfigUpgradeRequest, OLD_EXAMPLE),
)
def upgrade(body: BodyDep) -> ConfigUpgrade:
    """Bring a configuration of an older ML-Agents into the format of today. Nothing is stored."""
    wanted = body.read(ConfigUpgradeRequest, {})
    done = upgrade_config(wanted.config, wanted.curriculum, wanted.sampler)
    return ConfigUpgrade(
        document=done.upgrade.text,
        unchanged=done.upgrade.unchanged,
        changes=[ConfigRewrite.model_validate(each) for each in done.upgrade.changes],
        dropped=[ConfigDrop.model_validate(each) for each in done.upgrade.dropped],
        problems=[ConfigProblem.model_validate(each) for each in done.problems],
    )


@router.get("/{name:name}:diff", response_model=ConfigDiff, responses=problems(ConfigNotFound, NameAmbiguous))
def diff_config(name: ConfigName, old: Version, new: Version, database: DatabaseDep) -> ConfigDiff:
    """Compare the resolved forms of two versions."""
    with database.read() as session:
        changes = ConfigService(ConfigRepository(session)).diff(name, old, new)
    return ConfigDiff(name=name, old=old, new=new, changes=[ConfigChange.model_validate(each) for each in changes])


@router.post(
    "/{name:name}/versions",
    status_code=201,
    response_model=ConfigRead,
    responses={
        200: {"model": ConfigRead, "description": "The newest version is equal already."},
        **problems(InvalidConfig, UnsupportedMediaType, BodyInvalid, *COMMAND_PROBLEMS),
    },
    openapi_extra=declare_body(ConfigCreate, EXAMPLE),
)
def create_config_version(
    name: ConfigName,
    body: BodyDep,
    command: CommandDep,
    description: Annotated[Text | None, Query(description="Sets the body's field; for YAML bodies.")] = None,
) -> Response:
    """Store a configuration as the next version of a name. The body is JSON, or the bare configuration as YAML."""
    wanted = body.read(ConfigCreate, {"description": description})
    return command.run(
        lambda session: _stored(ConfigService(ConfigRepository(session)).store(name, wanted.config, wanted.description))
    )


@router.get(
    "/{name:name}/versions",
    response_model=ConfigVersionPage,
    responses=problems(ConfigNotFound, NameAmbiguous, *LIST_PROBLEMS),
)
def list_config_versions(name: ConfigName, listing: ListingDep, database: DatabaseDep) -> ConfigVersionPage:
    """List the versions of a name, newest first."""
    query = listing.query(VERSIONS)
    with database.read() as session:
        page = ConfigRepository(session).list_versions(name, query)
        versions = [ConfigSummary.model_validate(each) for each in page.items]
    return ConfigVersionPage(versions=versions, next_page_token=listing.token(VERSIONS, page))


@router.get(
    "/{name:name}/versions/{version}", response_model=ConfigRead, responses=problems(ConfigNotFound, NameAmbiguous)
)
def get_config_version(name: ConfigName, version: VersionKey, database: DatabaseDep) -> ConfigRead:
    """Return one version: as it was sent, parsed, and with every default filled in."""
    number = None if version == "latest" else int(version)
    with database.read() as session:
        return ConfigRead.model_validate(ConfigRepository(session).get_or_raise(name, number))


@router.get(
    "/{name:name}/versions/{version}/source",
    response_class=Response,
    responses={
        200: {"content": {"application/yaml": {"schema": {}}}, "description": "The document."},
        **problems(ConfigNotFound, NameAmbiguous),
    },
)
def get_config_source(name: ConfigName, version: VersionKey, database: DatabaseDep) -> Response:
    """Return the document as it was sent, as a file."""
    number = None if version == "latest" else int(version)
    with database.read() as session:
        source = ConfigRepository(session).get_or_raise(name, number).source
    return Response(source, media_type="application/yaml")


def _stored(stored: Stored) -> Answer:
    version = stored.version
    location = f"/v1/configs/{version.name}/versions/{version.version}"
    return Answer(201 if stored.created else 200, ConfigRead.model_validate(version), location)
