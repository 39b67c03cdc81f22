"""Configurations that are known to work, as documents: `cartpole.yaml` is read as `read_preset("cartpole")`."""

from importlib.resources import files


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
