"""Slots that are lent."""
