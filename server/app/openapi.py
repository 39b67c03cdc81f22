"""Completes FastAPI's description: problems, bodies that are read by hand, the form of a configuration."""

import json
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from pydantic import BaseModel

from ludus import schemas as resources
from ludus.config.run import RunConfig
from ludus.docstrings import field_texts
from server.app.access import is_open
from server.app.browsers import COOKIE, SECURE_PREFIX
from server.kit.http.auth import NAMED_IN_QUERY, NEED
from server.kit.http.fields import Write

Schema: TypeAlias = dict[str, Any]
"""A part of an OpenAPI document."""
REFERENCE = "#/components/schemas/{model}"
ABOUT = """\
Queue runs, watch them, download their models. docs/api.md has the rules that hold for all paths: tokens, projects,
lists and their filters, ETags, problems. docs/api-versions.md says what may change, and how it is announced.

Answers are JSON whatever `Accept` says; only `GET /v1/runs/{run}/events` answers with a stream where it is
`text/event-stream`.
"""
TAGS = {
    "aliases": "Names of checkpoints that can be moved, such as `champion`.",
    "assessments": "Results of runs that evaluate policies.",
    "attempts": "Executions of a run by workers.",
    "audit": "The log of changes.",
    "checkpoints": "Checkpoints of runs and their files; uploaded checkpoints.",
    "configs": "Stored configurations in immutable versions; presets.",
    "demonstrations": "Recordings of good behavior.",
    "events": "What happened to runs: page by page, or as a stream.",
    "experiments": "Settings of one configuration that are tried and compared, and their trials.",
    "ladders": "Players, matches, and the ratings computed from them.",
    "logs": "Log files of attempts.",
    "metrics": "Newest values of metrics, and their history.",
    "operation": "For probes, monitoring, and readers of problems.",
    "runs": "Training runs: queue, read, change, end.",
    "sessions": "Sessions of browsers.",
    "simulators": "Connected games, and the collectors that serve them.",
    "tokens": "Tokens and their rights.",
    "webhooks": "Addresses that receive events, and the messages sent to them.",
    "workers": "Slots of worker hosts, and the queue.",
}
SPELLED = {"last-event-id": "Last-Event-ID"}
"""Names of headers that are not spelled Like-This."""
UNCHANGED = "The answer is still the one whose `ETag` the header `If-None-Match` names."
SECURITY = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "If the server demands one (docs/security.md). Each operation says in `x-ludus-scope` which "
        "scope it needs: `read`, `run` or `admin`; `everywhere`: bound to no project.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "The cookie of `POST /ui/session`, which stands for a token; over https "
        f"`{SECURE_PREFIX}` is in front of its name. For the server's own pages.",
    },
}
REFERENCED = re.compile(REFERENCE.format(model=r"(\w+)"))


def describe(document: Schema, prefix: str) -> Schema:
    """Add what FastAPI can't know to its description, and return it. `prefix` is that of the settings."""
    document["info"] |= {"description": ABOUT, "contact": {"name": "The operator of this server"}}
    document["servers"] = [{"url": prefix or "/", "description": "This server."}]
    document["tags"] = [{"name": name, "description": text} for name, text in sorted(TAGS.items())]
    schemas: Schema = document.setdefault("components", {}).get("schemas", {})
    for name, schema in schemas.items():
        kind = getattr(resources, name, None)
        if isinstance(kind, type) and is_dataclass(kind):
            _describe_resource(kind, schema)
    models = {model.__name__: model for model in _subclasses(BaseModel)}
    for name in sorted({*REFERENCED.findall(json.dumps(document))} - schemas.keys()):  # of bodies that are read by hand
        mode: Literal["serialization", "validation"] = "serialization" if models[name] is RunConfig else "validation"
        schema = models[name].model_json_schema(ref_template=REFERENCE, mode=mode)
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = schema
    for name in schemas.keys() & models.keys():
        _describe_model(models[name], schemas[name])
    document["components"] = {"schemas": dict(sorted(schemas.items())), "securitySchemes": SECURITY}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            _describe_operation(path, method, operation)
    return document


def _describe_model(model: type[BaseModel], schema: Schema) -> None:
    """Add the texts below a model's fields.

    The defaults of a request's fields are said in words: generators of clients demand a field that has a default.
    """
    texts = field_texts(model)
    for name, field in schema.get("properties", {}).items():
        default = field.get("default")
        if issubclass(model, Write):
            field.pop("default", None)
            if default is not None:
                field["description"] = f"{field.get('description', '')} Default: {json.dumps(default)}.".strip()
        if name in texts:
            field["description"] = texts[name]


def _describe_resource(kind: type, schema: Schema) -> None:
    """Add the texts below a resource's fields. Answers have every field, so none of them has a default."""
    properties = schema["properties"]
    schema["required"] = list(properties)
    hints = get_type_hints(kind, include_extras=True)
    texts = field_texts(kind)
    for name, field in properties.items():
        field.pop("default", None)
        if name in texts:
            field["description"] = texts[name]
        arguments = get_args(hints[name])
        if sum(map(is_dataclass, arguments)) > 1:  # told apart by their field `kind`
            field["oneOf"] = field.pop("anyOf")
            field["discriminator"] = {"propertyName": "kind"}
        if RunConfig.__name__ in arguments:  # the mark of `ludus.schemas.ResolvedConfig`
            properties[name] = {"$ref": REFERENCE.format(model=RunConfig.__name__)}


def _describe_operation(path: str, method: str, operation: Schema) -> None:
    """Add the scope and the ways to authenticate, the names of headers as they are spelled, and the answer 304."""
    operation.pop(NAMED_IN_QUERY, None)
    is_public = is_open({"path": path, "method": method.upper()})
    scopes = operation.pop(NEED, ["read" if method == "get" else "run"])
    if needed := [scope for scope in scopes if scope and not is_public]:
        operation[NEED] = needed
    operation["security"] = [{}] if is_public else [{"token": []}, {"session": []}, {}]
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "header":
            parameter["name"] = SPELLED.get(parameter["name"].lower(), parameter["name"].title())
    answers = operation["responses"]
    if method == "get" and "application/json" in answers["200"].get("content", {}):
        answers.setdefault("304", {"description": UNCHANGED})


def _subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in model.__subclasses__():
        if child.__module__.startswith(("ludus.", "server.")):
            yield child
        yield from _subclasses(child)
