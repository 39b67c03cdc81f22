"""The bottleneck of a run: the measurements of its newest attempt, and the sentence about them."""
