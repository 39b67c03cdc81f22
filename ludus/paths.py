"""What the SDK and the client take where a file is named: text, or anything that stands for a path."""

import os
from typing import TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]
