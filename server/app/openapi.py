"""Completes FastAPI's description: problems, bodies that are read by hand, the form of a configuration."""

from typing import Any

from pydantic import BaseModel

from server.access.tokens.schemas import SimulatorTokenCreate, TokenCreate
from server.app.access import NEED, OPEN_PATHS
from server.config.config import RunConfig
from server.configs.schemas import ConfigCreate
from server.demonstrations.schemas import DemonstrationMerge, DemonstrationSubsample
from server.kit.http.errors import Problem
from server.kit.http.fields import REFERS_TO
from server.runs.schemas import RunCreate

REFERENCE = "#/components/schemas/{model}"
MODELS: tuple[type[BaseModel], ...] = (
    Problem,
    RunConfig,
    RunCreate,
    ConfigCreate,
    DemonstrationMerge,
    DemonstrationSubsample,
    SimulatorTokenCreate,
    TokenCreate,
)
"""Models that routes refer to by name."""


def describe(schema: dict[str, Any]) -> dict[str, Any]:
    """Add what FastAPI can't know to its description, and return it."""
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for model in MODELS:
        own = model.model_json_schema(
            ref_template=REFERENCE, mode="serialization" if model is RunConfig else "validation"
        )
        schemas.update(own.pop("$defs", {}))
        schemas[model.__name__] = own
    for own in schemas.values():
        for name, field in own.get("properties", {}).items():
            if REFERS_TO in field:
                own["properties"][name] = {"$ref": REFERENCE.format(model=field[REFERS_TO])}
    components["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "Where the server demands one (docs/security.md). What an operation needs stands as a role: "
            "`read`, `run` or `admin`; `everywhere`: bound to no project.",
        }
    }
    for path, item in schema["paths"].items():
        for operation in item.values():
            roles = operation.pop(NEED, [])
            operation["security"] = [{}] if path in OPEN_PATHS else [{"token": [role for role in roles if role]}, {}]
    components["schemas"] = dict(sorted(schemas.items()))
    return schema
