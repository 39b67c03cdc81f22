"""Converts configuration files of older ML-Agents releases to the present format, and lists the changes.

It reads the flat files up to 0.16 (`default:` and one block for each behavior), their curricula (YAML by behavior, or
one JSON file for each) and sampler files, the sections `parameter_randomization` and `curriculum` up to 0.18, and keys
that were renamed since: `train_interval`, `num_update` and `reward_signal_num_update`, `pretraining`, `use_recurrent`,
`encoding_size`, `play_against_current_self_ratio`, `use_curiosity`, the trainers `offline_bc` and `online_bc`.

It goes further than `mlagents.trainers.upgrade_config`, whose lessons ML-Agents 1.1.0 refuses, which loses the sections
beside `behaviors`, and which drops what it doesn't know in silence: here everything that is dropped is listed. It
judges no values; whether the result is legal, `resolve` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from ludus.config.problems import Path, join_path, parse_path
from server.config.document import Document, located, parse_document, text_of
from server.config.upgrade.blocks import from_blocks
from server.config.upgrade.environment_parameters import add_parameters, by_behavior, read_curricula, read_samplers
from server.config.upgrade.notes import Dropped, Notes, Rewritten
from server.config.upgrade.sections import from_sections
from server.kit.errors import InvalidConfig, Problem


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A document in the format of today."""

    document: dict[str, Any]
    text: str
    """The same as YAML: as it was sent if nothing changed, else without comments."""
    changes: tuple[Rewritten, ...]
    dropped: tuple[Dropped, ...]

    @property
    def unchanged(self) -> bool:
        """Whether the document had the format of today."""
        return not self.changes and not self.dropped


def upgrade(document: Document, *, curriculum: Document | None = None, sampler: Document | None = None) -> Upgrade:
    """Bring a document into the format of today.

    `curriculum` and `sampler` are the files that releases up to 0.16 had beside it. Raises InvalidConfig if something
    is no document at all, or can't be understood as one of an older release.
    """
    notes = Notes()
    repeated: list[tuple[Path, Any]] = []
    with located(document):
        old = parse_document(document, repeated)
        for path, value in repeated:
            notes.drop(path, value, "stands twice, with the same value")
        is_modern = not old.keys().isdisjoint({"behaviors", "default_settings"})
        new = from_sections(old, notes) if is_modern else from_blocks(old, notes)
    if sampler is not None:
        samplers = _parse_beside(sampler, "sampler")
        add_parameters(new, read_samplers(samplers, ("sampler",), notes), ("sampler",), notes)
    if curriculum is not None:
        lessons = read_curricula(by_behavior(_parse_beside(curriculum, "curriculum"), new), ("curriculum",), notes)
        add_parameters(new, lessons, ("curriculum",), notes)
    if not notes.changes and not notes.dropped:
        return Upgrade(old, text_of(document, _written), (), ())
    return Upgrade(new, _written(new), tuple(notes.changes.values()), tuple(notes.dropped.values()))


def _parse_beside(document: Document, name: str) -> dict[str, Any]:
    """Parse a file beside the trainers'. Its problems have its name in front of their paths, and no lines of theirs."""
    try:
        return parse_document(document)
    except InvalidConfig as error:
        raise InvalidConfig(
            [
                Problem(join_path((name, *parse_path(each.path))), each.code, str(replace(each, path="")))
                for each in error.problems
            ]
        ) from error


def _written(document: Mapping[str, Any]) -> str:
    """Write a document as YAML; with escapes where PyYAML would not read its own text again (U+0085 in a key)."""
    plain = dict(document)
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return text if parse_document(text) == plain else yaml.safe_dump(plain, sort_keys=False, width=120)
