"""The parent of the API's resources."""

from dataclasses import Field, dataclass, field
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class FrozenRecord:
    """A frozen dataclass whose fields are given by name, as each class below this one is."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        """Make the class a dataclass."""
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)
