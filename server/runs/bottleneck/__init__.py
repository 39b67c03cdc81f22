"""What holds a run back: the measurements of its newest attempt, and the sentence about them."""
