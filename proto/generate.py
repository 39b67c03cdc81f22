"""Generate the Python stubs in ludus/protocol/ from the .proto files. `--check` fails if the committed ones differ.

The folders of the sources are mapped to package paths, so the stubs import `ludus.protocol` without rewriting.
"""

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"


def generate(target: Path) -> list[Path]:
    """Write the stubs below `target`/ludus/protocol and return their paths."""
    protocol = target / "ludus" / "protocol"
    (protocol / "mlagents").mkdir(parents=True, exist_ok=True)
    include = f"-Iludus/protocol={PROTO / 'ludus' / 'v1'}"
    compile_protos(target, include, f"--grpc_python_out={target}", "ludus/protocol/simulation.proto")
    # The service between our own two ends is served and called as raw bytes: messages are enough.
    compile_protos(target, include, "ludus/protocol/collector.proto")
    messages = sorted(f"ludus/protocol/mlagents/{path.name}" for path in (PROTO / "mlagents").glob("*.proto"))
    compile_protos(target, f"-Iludus/protocol/mlagents={PROTO / 'mlagents'}", *messages)
    stubs = [*protocol.glob("simulation_pb2*"), *protocol.glob("collector_pb2*")]
    return sorted([*stubs, *(protocol / "mlagents").glob("*_pb2*")])


def compile_protos(target: Path, *arguments: str) -> None:
    """Run protoc with Python output."""
    include = f"-I{Path(grpc_tools.__file__).parent / '_proto'}"
    if protoc.main(["protoc", include, f"--python_out={target}", f"--pyi_out={target}", *arguments]) != 0:
        sys.exit("protoc failed")


def main() -> None:
    """Regenerate the stubs, or compare them with the committed ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed stubs are out of date")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        fresh = {path.relative_to(folder).as_posix(): path for path in generate(Path(folder))}
        stale = [
            name
            for name, path in fresh.items()
            if not (ROOT / name).exists() or not filecmp.cmp(path, ROOT / name, shallow=False)
        ]
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}. Run `make protos` and commit the result.")


if __name__ == "__main__":
    main()
