"""Events of runs, and the moves between states, each of which writes one."""
