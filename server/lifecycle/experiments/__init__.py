"""Experiments: many runs of one configuration, in which some keys vary, for one answer."""
