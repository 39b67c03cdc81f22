"""The type of file names in the SDK and the client: text, or a path object."""

import os
from typing import TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]
