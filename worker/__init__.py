"""Everything that needs torch or takes long: Celery tasks, the supervisor, the trainer, the algorithms."""
