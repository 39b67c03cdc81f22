"""`python -m server.embedded.child PARENT COMMAND ...`: a `ludus` command that does not outlive its `ludus up`."""

import sys

from ludus.cli import main as ludus
from server.kit.processes import end_with_parent


def main() -> None:
    """Tie this process to its parent, then become the command."""
    end_with_parent(int(sys.argv[1]))
    sys.argv = ["ludus", *sys.argv[2:]]
    ludus()


if __name__ == "__main__":
    main()
