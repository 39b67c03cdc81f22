"""The trainer: one attempt of a run, as a process of its own. No database, no HTTP, no Celery.

Under a supervisor it is started warm (`python -m worker.trainer --link FD`), waits for its job, and talks over the
link. Alone, for debugging and profiling, it takes a configuration: `python -m worker.trainer CONFIG [--scratch
FOLDER]`. It then listens for simulators on loopback without tickets, prints what it would have told its supervisor,
and leaves its checkpoints in the folder.
"""
