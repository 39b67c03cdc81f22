"""The type of documents that travel as JSON and YAML."""

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A parsed JSON object. Its values are None, bool, int, float, str, lists, and objects again; the key says which."""
