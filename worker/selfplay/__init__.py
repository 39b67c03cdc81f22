"""Self-play: one team learns at a time, the others play frozen versions of the policies (ML-Agents' ghost trainer)."""
