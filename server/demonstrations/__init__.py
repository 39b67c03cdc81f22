"""Demonstrations: uploaded recordings of good behavior, their inspection, and files derived from them."""
