"""`python -m worker.collectors`: a collector of a worker. It imports torch for the behaviors that need it."""

from ludus.collector.process import main
from worker.collectors.acting import POLICIES

if __name__ == "__main__":
    main(POLICIES)
