"""Comparisons that anybody can run: ratios of contestants that take turns on one machine."""
