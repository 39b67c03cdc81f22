"""Imports all modules that define tables, so that the metadata is complete for migrations and their check."""

from importlib import import_module
from pathlib import Path

import server
from server.kit.db.base import Base

__all__ = ["Base"]

_ROOT = Path(server.__path__[0])
for _path in sorted(_ROOT.rglob("*.py")):
    if "__tablename__ =" in _path.read_text(encoding="utf-8") and _path != Path(__file__):
        import_module(".".join((server.__name__, *_path.relative_to(_ROOT).with_suffix("").parts)))
