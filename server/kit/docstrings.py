"""Reads the docstrings below the fields of a class: the descriptions in OpenAPI and in the generated pages."""

import ast
import inspect
import sys
import threading
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Final

_PARSING: Final = threading.Lock()
"""CPython 3.11 counts the depth of a tree in one variable of the interpreter: where garbage collection hands the
interpreter to a thread that parses, too, `ast.parse` raises SystemError (python/cpython#106905)."""


@cache
def field_texts(kind: type) -> Mapping[str, str]:
    """Return the descriptions of the fields of a dataclass or a model, each in one line.

    A description is the docstring below a field, or else the `description` of pydantic's `Field`. Reading the source
    takes milliseconds: this is for documents, not for requests.
    """
    models = getattr(kind, "model_fields", {})
    texts: dict[str, str] = {name: field.description for name, field in models.items() if field.description}
    for cls in reversed(kind.__mro__[:-1]):
        if cls.__module__.partition(".")[0] not in {"server", "ludus"}:
            continue
        if getattr(sys.modules[cls.__module__], cls.__name__, None) is not cls:
            continue  # made by pydantic's `create_model`: it has no source
        with _PARSING:  # `getsource` parses, too
            (tree,) = ast.parse(inspect.getsource(cls)).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in pairwise(tree.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    texts[name] = " ".join(words.split())
    return texts
