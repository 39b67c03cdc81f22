"""Secrets in files: `LUDUS_API__TOKEN_FILE` names the file with the value of `LUDUS_API__TOKEN`, likewise each secret.

Orchestrators mount secrets as files. pydantic-settings reads a folder of files with the settings' own names
(`secrets_dir`); that a variable names the file is the convention of container images.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import SettingsError

SUFFIX: Final = "_FILE"


def is_secret(field: FieldInfo) -> bool:
    """Return whether the value of a setting is a secret."""
    return SecretStr in {field.annotation, *get_args(field.annotation)}


def secret_variables(settings: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the environment variables of the secrets in all groups of settings, in capitals."""
    for group, field in settings.model_fields.items():
        for name, inner in getattr(field.annotation, "model_fields", {}).items():
            if is_secret(inner):
                yield f"{prefix}{group}__{name}".upper()


def read_secret_files(
    environment: Mapping[str, str | None], settings: type[BaseModel], prefix: str
) -> dict[str, str | None]:
    """Return an environment, whose names are in small letters, with secrets' files read in place of their paths.

    An empty variable, as a compose file passes it on, counts as none; the line break at a file's end is not part of
    the secret. Raises SettingsError with a sentence for each file that cannot be used.
    """
    variables = dict(environment)
    problems = []
    for variable in secret_variables(settings, prefix):
        path = variables.pop(f"{variable}{SUFFIX}".lower(), None)
        if not path:
            continue
        if variables.get(variable.lower()):
            problems.append(f"{variable}{SUFFIX}: {variable} is set, too; remove one of them")
            continue
        try:
            variables[variable.lower()] = _read(Path(path))
        except ValueError as error:
            problems.append(f"{variable}{SUFFIX}: {error}")
    if problems:
        raise SettingsError("\n  ".join(problems))
    return variables


def _read(path: Path) -> str:
    """Return the secret in a file. Raises ValueError with the reason."""
    try:
        secret = path.read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ValueError(f"the file {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {path} is not UTF-8 text") from None
    if not secret.strip():
        raise ValueError(f"the file {path} is empty; write the secret into it")
    return secret
