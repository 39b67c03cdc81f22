"""Generate the Python stubs in ludus/wire/ from the .proto files. `--check` fails if the committed ones differ.

The service is one file, so mapping its folder to the package path makes the stubs import `ludus.wire` as they are.
"""

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
WIRE = ROOT / "ludus" / "wire"


def generate(target: Path) -> list[Path]:
    """Write the stubs below `target`/ludus/wire and return their paths."""
    arguments = [
        "protoc",
        f"-Iludus/wire={ROOT / 'proto' / 'ludus' / 'v1'}",
        f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        f"--grpc_python_out={target}",
        "ludus/wire/simulation.proto",
    ]
    if protoc.main(arguments) != 0:
        sys.exit("protoc failed")
    return sorted((target / "ludus" / "wire").glob("simulation_pb2*"))


def main() -> None:
    """Regenerate, or compare with what is committed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed stubs are out of date")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ludus" / "wire").mkdir(parents=True)
        fresh = generate(Path(folder))
        stale = [
            path.name
            for path in fresh
            if not (WIRE / path.name).exists() or not filecmp.cmp(path, WIRE / path.name, shallow=False)
        ]
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}. Run `make protos` and commit the result.")


if __name__ == "__main__":
    main()
