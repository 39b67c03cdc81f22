"""`python -m ludus.collector`: a collector without torch."""

from ludus.collector.acting import PolicyFactory
from ludus.collector.main import main

if __name__ == "__main__":
    main(PolicyFactory())
