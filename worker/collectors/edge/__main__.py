"""`python -m worker.collectors.edge`: the edge reader of one attempt."""

from worker.collectors.edge.reader import main

if __name__ == "__main__":
    main()
