"""The worker host: Celery tasks, slots, devices, and the supervisor of each attempt."""
