"""What happened to a run: events, and the moves between states that always come with one."""
