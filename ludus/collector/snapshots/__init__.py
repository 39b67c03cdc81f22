"""Exact resume in the middle of episodes: collectors snapshot their sessions for a checkpoint, and go on from them."""
