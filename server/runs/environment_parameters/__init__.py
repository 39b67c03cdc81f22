"""Environment parameters of runs: present lessons, and changes during a run."""
