"""Reads the docstrings below the fields of a class: the descriptions in OpenAPI and in the generated pages."""

import ast
import inspect
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
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
        if cls.__module__.partition(".")[0] == "pydantic" or cls.__name__ not in vars(sys.modules[cls.__module__]):
            continue  # `create_model` makes classes that stand in no module
        texts |= _docstrings_of(cls.__module__).get(cls.__name__, {})
    return texts


@cache
def _docstrings_of(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the docstrings below the fields of each class of a module, which is parsed once for all of them."""
    with suppress(OSError, TypeError), _PARSING:  # a plug-in may come without its source
        return _read(ast.parse(inspect.getsource(sys.modules[module])))
    return {}


def _read(tree: ast.Module) -> Mapping[str, Mapping[str, str]]:
    classes = dict[str, dict[str, str]]()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            texts = classes[node.name] = dict[str, str]()
            for field, text in pairwise(node.body):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                        texts[name] = " ".join(words.split())
    return classes
