import subprocess
import sys

import pytest


@pytest.mark.long
def test_a_trainer_process_starts_without_the_database_and_the_sdk() -> None:
    """They would cost each start of a run half a second."""
    check = (
        "import sys, worker.trainer.__main__; "
        "assert not {'sqlalchemy', 'psycopg', 'grpc', 'fastapi', 'ludus.sdk'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
