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
from dataclasses import dataclass
from typing import Any

import yaml

from server.config.document import Document, parse_document, text_of
from server.config.upgrade.blocks import from_blocks
from server.config.upgrade.environment_parameters import add_parameters, by_behavior, read_curricula, read_samplers
from server.config.upgrade.notes import Dropped, Notes, Rewritten
from server.config.upgrade.sections import from_sections


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
    old = parse_document(document)
    notes = Notes()
    new = from_sections(old, notes) if "behaviors" in old else from_blocks(old, notes)
    if sampler is not None:
        add_parameters(new, read_samplers(parse_document(sampler), ("sampler",), notes), ("sampler",), notes)
    if curriculum is not None:
        lessons = read_curricula(by_behavior(parse_document(curriculum), new), ("curriculum",), notes)
        add_parameters(new, lessons, ("curriculum",), notes)
    if not notes.changes and not notes.dropped:
        return Upgrade(old, text_of(document, _written), (), ())
    return Upgrade(new, _written(new), tuple(notes.changes), tuple(notes.dropped))


def _written(document: Mapping[str, Any]) -> str:
    """Write a document as YAML; with escapes where PyYAML would not read its own text again (U+0085 in a key)."""
    plain = dict(document)
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return text if parse_document(text) == plain else yaml.safe_dump(plain, sort_keys=False, width=120)
