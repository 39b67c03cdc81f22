"""The trainer: one attempt of a run, as a process of its own. No database, no HTTP, no Celery.

Under a supervisor it is started warm (`python -m worker.trainer --channel FD`), waits for its job, and exchanges
messages over the channel. Alone, for debugging and profiling, it takes a configuration:
`python -m worker.trainer CONFIG [--scratch FOLDER]`. It then listens for simulators on loopback without tickets, prints
its reports, and leaves its checkpoints in the folder.
"""
