"""Everything that needs torch or takes long: tasks, the supervisor, the trainer, collectors and algorithms."""
