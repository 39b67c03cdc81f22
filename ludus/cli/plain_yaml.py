"""Reads values of the command line as a configuration has them: YAML 1.1, but `1e-3` is a number and a date is text.

YAML 1.1 takes `1e-3` and `1e5` for text, because they have no point or no sign. A whole number that is written so, as
`1e5`, is an int: a game may count with it. A date stays the text that it is in a configuration.
"""

import math
import re
from typing import Any

import yaml

_NUMBER = re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+\Z")


class _Loader(yaml.SafeLoader):
    """SafeLoader with these two rules."""

    def construct_number(self, node: Any) -> float:
        """Return the number behind a text with an exponent."""
        text = node.value.replace("_", "")
        number = float(text)
        if math.isinf(number):
            raise ValueError(f"{node.value} is larger than any number")
        return int(number) if "." not in text and number.is_integer() else number

    def construct_text(self, node: Any) -> str:
        """Return a text as it is written."""
        return str(self.construct_scalar(node))


_Loader.add_implicit_resolver("!number", _NUMBER, list("-+.0123456789"))
_Loader.add_constructor("!number", _Loader.construct_number)
for _kind in ("timestamp", "value"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.construct_text)


def read_yaml(text: str) -> Any:
    """Read a value. Raises yaml.YAMLError."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506  a SafeLoader
    except (ValueError, OverflowError, RecursionError) as error:  # 0b3, 1e999: of a number's form, but none
        raise yaml.YAMLError(str(error)) from error
