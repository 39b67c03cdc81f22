"""The choice of a free slot among waiting runs: demands of runs, offers of slots, and the order."""
