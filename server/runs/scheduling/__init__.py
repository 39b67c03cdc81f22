"""Which waiting run a free slot takes: what a run demands, what a slot offers, whose turn it is."""
