"""Configurations that are known to work, as documents: `cartpole.yaml` is read as `read_preset("cartpole")`.

The comment at the head of a document begins with a sentence that describes it.
"""

import re
from functools import cache
from importlib.resources import files
from itertools import takewhile

from ludus.schemas import Preset
from server.config.resolution import resolve


def list_presets() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in files(__name__).iterdir() if entry.name.endswith(".yaml")
    )


def read_preset(name: str) -> str:
    """Return a preset's YAML text. Raises KeyError where there is none of this name."""
    if name not in list_presets():
        raise KeyError(name)
    return files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


@cache
def describe_preset(name: str) -> Preset:
    """Return a preset with its description. Raises KeyError where there is none of this name."""
    source = read_preset(name)
    head = takewhile(lambda line: line.startswith("#"), source.splitlines())
    sentence, *_ = re.split(r"(?<=\.) ", " ".join(line.lstrip("# ") for line in head), maxsplit=1)
    trainer_types = {section.trainer_type for section in resolve(source).behaviors.values()}
    return Preset(name=name, description=sentence, trainer_types=tuple(sorted(trainer_types)), source=source)
