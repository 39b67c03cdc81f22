"""Demonstrations as values that outlive a session, their specs as JSON, and errors."""

from dataclasses import dataclass

from ludus.protocol.spec import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from server.kit.db.texts import JsonObject
from server.kit.errors import Conflict, Invalid, NotFound


class DemonstrationNotFound(NotFound, code="demonstration_not_found"):
    """No demonstration has this id."""

    demonstration_id: str
    sentence = "There is no demonstration {demonstration_id!r}. List the demonstrations to see what there is."


class DemonstrationInUse(Conflict, code="demonstration_in_use"):
    """A demonstration cannot be deleted: a run that has not ended uses it."""

    demonstration_id: str
    run_id: str
    sentence = (
        "Demonstration {demonstration_id} is used by run {run_id}, which has not ended. Wait for its end, or cancel "
        "it, and delete the demonstration then."
    )


class DemonstrationInvalid(Invalid, code="invalid_demonstration"):
    """A file is no demonstration, or the requested one cannot be made of it."""

    problem: str
    name: str = ""
    position: int | None = None

    def _sentence(self) -> str:
        where = f" {self.name}" if self.name else ""
        at = "" if self.position is None else f" (at byte {self.position})"
        return f"The demonstration{where} cannot be used{at}: {self.problem}."


@dataclass(frozen=True)
class DemonstrationRef:
    """A stored demonstration's file."""

    id: str
    name: str
    """For people."""
    path: str
    """In the artifact store."""
    sha256: str
    """Lower-case hexadecimal."""

    @property
    def label(self) -> str:
        """Its name and id in messages; the id alone where it has no other name."""
        return self.id if self.name == self.id else f"{self.name} ({self.id})"


def spec_to_json(spec: BehaviorSpec) -> JsonObject:
    """Return a spec as plain values."""
    return {
        "name": spec.name,
        "observations": [
            {
                "name": observation.name,
                "shape": list(observation.shape),
                "dtype": observation.dtype,
                "type": observation.type.name.lower(),
                "dimension_properties": [dimension.name.lower() for dimension in observation.dimension_properties],
            }
            for observation in spec.observations
        ],
        "actions": {
            "continuous_size": spec.actions.continuous_size,
            "discrete_branches": list(spec.actions.discrete_branches),
        },
    }


def spec_from_json(values: JsonObject) -> BehaviorSpec:
    """Return the spec that `spec_to_json` wrote."""
    return BehaviorSpec(
        values["name"],
        tuple(
            ObservationSpec(
                tuple(observation["shape"]),
                observation["name"],
                observation["dtype"],
                ObservationType[observation["type"].upper()],
                tuple(DimensionProperty[name.upper()] for name in observation["dimension_properties"]),
            )
            for observation in values["observations"]
        ),
        ActionSpec(values["actions"]["continuous_size"], tuple(values["actions"]["discrete_branches"])),
    )
