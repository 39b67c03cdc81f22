"""Stored configurations: names with immutable versions. Presets: configurations that come with the server."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from ludus import schemas
from ludus.json_values import JsonObject
from ludus.validation import Form
from server.kit.db.database import Session
from server.kit.errors import ConfigNotFound, InvalidConfig, InvalidQuery, NameAmbiguous, RunNotFound
from server.kit.http.bodies import EXAMPLE, BodyDep, declare_body
from server.kit.http.errors import BodyInvalid, PageTokenInvalid, UnsupportedMediaType, problems
from server.kit.http.fields import Document, Name, Text, Write
from server.kit.http.idempotency import BODY_PROBLEMS, Answer
from server.kit.http.listing import LIST_PROBLEMS, ListForm, ListingDep, ListPage, PagingDep
from server.kit.http.parameters import ConfigName, Version
from server.kit.http.resources import list_of, resource
from server.kit.http.services import CommandDep, DatabaseDep
from server.runs.amendments import AmendmentRepository
from server.runs.repository import RunRepository
from server.runs.stored_configs.repository import LIST_FIELDS, ConfigRepository
from server.runs.stored_configs.service import ConfigService, PresetNotFound, find_preset, known_presets, upgrade_config

router = APIRouter(prefix="/v1/configs", tags=["configs"])
presets = APIRouter(prefix="/v1/presets", tags=["configs"])

NAMES = ListForm("configs", schemas.ConfigSummary, LIST_FIELDS, orders=("name", "created_at"), ascending=True)
VERSIONS = replace(NAMES, name="config-versions", orders=("version", "created_at"), ascending=False, items="versions")

OLD_EXAMPLE = """\
default:
  trainer: ppo
  use_recurrent: false
CartPole:
  max_steps: 150000
"""
"""A configuration of an older release, for the documentation."""


class ConfigUpgradeRequest(Write):
    """A configuration of an older release of ML-Agents."""

    config: Document
    """The file of the trainers: an object, or its text as YAML or JSON."""
    curriculum: Document | None = None
    """The file of curricula that releases up to 0.16 had beside it, by behavior."""
    sampler: Document | None = None
    """The file of samplers that releases up to 0.16 had beside it."""


class ConfigCreate(Write):
    """A configuration to be stored."""

    config: Document
    """An object, or its text as YAML or JSON, which is stored unchanged."""
    description: Text = ""
    """Description."""


VersionKey = Annotated[
    str,
    Form("the number of a version, or `latest`", "^(latest|[1-9][0-9]{0,8})$"),
    Path(description="A version's number, or `latest`."),
]


@router.get("", response_model=NAMES.page(), responses=problems(*LIST_PROBLEMS))
def list_configs(listing: ListingDep) -> JsonObject:
    """List the names of stored configurations, each with its newest version."""
    return listing.answer(NAMES, lambda session, query: ConfigRepository(session).list_names(query))


@router.post(
    ":upgrade",
    responses=problems(InvalidConfig, UnsupportedMediaType, BodyInvalid),
    openapi_extra=declare_body(ConfigUpgradeRequest, OLD_EXAMPLE),
)
def upgrade(body: BodyDep) -> schemas.ConfigUpgrade:
    """Bring a configuration of an older ML-Agents into the format of today. Nothing is stored."""
    request = body.read(ConfigUpgradeRequest, {})
    upgraded, found_problems = upgrade_config(request.config, request.curriculum, request.sampler)
    return schemas.ConfigUpgrade(
        document=upgraded.text,
        unchanged=upgraded.unchanged,
        changes=upgraded.changes,
        dropped=upgraded.dropped,
        problems=tuple(resource(schemas.ConfigProblem, problem) for problem in found_problems),
    )


@router.get("/{name:name}:diff", responses=problems(ConfigNotFound, NameAmbiguous, RunNotFound, InvalidQuery))
def diff_config(
    name: ConfigName,
    old: Version,
    database: DatabaseDep,
    new: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="The version to compare with.")] = None,
    run: Annotated[
        Name | None, Query(description="A run's id or name, to compare with what it was created with instead.")
    ] = None,
) -> schemas.ConfigDiff:
    """Compare the resolved form of a version with that of another one, or with what a run was created with."""
    if (new is None) == (run is None):
        raise InvalidQuery("new", "say either `new` or `run`, to compare with a version or with a run")
    with database.read() as session:
        configs = ConfigService(ConfigRepository(session))
        if run is None:
            changes = configs.diff(name, old, new)
        else:
            changes = configs.changes(name, old, AmendmentRepository(session).original(RunRepository(session).get(run)))
    return schemas.ConfigDiff(name=name, old=old, new=new, run=run, changes=tuple(changes))


@router.post(
    "/{name:name}/versions",
    status_code=201,
    response_model=schemas.ConfigVersion,
    responses={
        200: {"model": schemas.ConfigVersion, "description": "The newest version is equal already."},
        **problems(InvalidConfig, *BODY_PROBLEMS),
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
    request = body.read(ConfigCreate, {"description": description})

    def store(session: Session) -> Answer:
        service = ConfigService(ConfigRepository(session))
        version, created = service.store(name, request.config, request.description)
        location = f"/v1/configs/{version.name}/versions/{version.version}"
        return Answer(201 if created else 200, resource(schemas.ConfigVersion, version), location)

    return command.run(store)


@router.get(
    "/{name:name}/versions",
    response_model=VERSIONS.page(),
    responses=problems(ConfigNotFound, NameAmbiguous, *LIST_PROBLEMS),
)
def list_config_versions(name: ConfigName, listing: ListingDep) -> JsonObject:
    """List the versions of a name, newest first."""
    return listing.answer(VERSIONS, lambda session, query: ConfigRepository(session).list_versions(name, query))


@router.get("/{name:name}/versions/{version}", responses=problems(ConfigNotFound, NameAmbiguous))
def get_config_version(name: ConfigName, version: VersionKey, database: DatabaseDep) -> schemas.ConfigVersion:
    """Return one version: as it was sent, parsed, and with every default filled in."""
    number = None if version == "latest" else int(version)
    with database.read() as session:
        return resource(schemas.ConfigVersion, ConfigRepository(session).get_or_raise(name, number))


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


@presets.get(
    "",
    response_model=list_of("PresetList", schemas.PresetSummary, "presets", ListPage),
    responses=problems(PageTokenInvalid),
)
def list_presets(paging: PagingDep) -> JsonObject:
    """List the configurations that come with the server, which are known to work."""
    return paging.answer("presets", [resource(schemas.PresetSummary, preset) for preset in known_presets()])


@presets.get("/{name:name}", responses=problems(PresetNotFound))
def get_preset(name: ConfigName) -> schemas.Preset:
    """Return one preset with its YAML text, from which a run can be created as it is."""
    return find_preset(name)
