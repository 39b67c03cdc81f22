"""Environment parameters of runs: where their lessons are, and changes while a run goes on."""
