"""The rules for names (of runs, configurations, ladders, aliases, ...) and for tags.

Names are parts of addresses and of command lines, so they have no blanks and no signs that mean something there.
Letters and digits are those of any alphabet.
"""

import unicodedata
from typing import Final

MAX_NAME: Final = 200
"""Characters."""
MAX_TAG: Final = 100
"""Characters."""
NAME_RULE: Final = (
    f"1 to {MAX_NAME} letters (accents composed: NFC) and digits of any alphabet, dots, underscores and hyphens, "
    "no sign in front"
)
TAG_RULE: Final = f"1 to {MAX_TAG} characters that can be seen, with blanks only inside, and no asterisk"
_MARK: Final = "M"
"""Unicode's categories of marks, which many alphabets put on letters."""


def is_name(text: str) -> bool:
    """Whether a text keeps `NAME_RULE`. Of two spellings of one accented letter only the composed one (NFC) does."""
    return (
        0 < len(text) <= MAX_NAME
        and text[0].isalnum()
        and all(_in_name(character) for character in text)
        and unicodedata.is_normalized("NFC", text)
    )


def is_tag(text: str) -> bool:
    """Whether a text keeps `TAG_RULE`. An asterisk stands for anything in a filter."""
    return 0 < len(text) <= MAX_TAG and text.isprintable() and text == text.strip() and "*" not in text


def to_name(text: str) -> str | None:
    """Return the name that is closest to a text: hyphens in place of what a name cannot have; None without any."""
    composed = unicodedata.normalize("NFC", text)
    parts = "".join(character if _in_name(character) else " " for character in composed).split()
    name = "-".join(parts)
    while name and not name[0].isalnum():
        name = name[1:]
    return name[:MAX_NAME] or None


def _in_name(character: str) -> bool:
    return character.isalnum() or character in "._-" or unicodedata.category(character)[0] == _MARK
