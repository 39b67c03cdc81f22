"""Imports all models, so that the metadata is complete for migrations and their check."""

from importlib import import_module
from pkgutil import walk_packages

import server
from server.kit.db.base import Base

__all__ = ["Base"]

for _module in walk_packages(server.__path__, "server."):
    if _module.name.endswith(".models"):
        import_module(_module.name)
