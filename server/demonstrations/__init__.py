"""Uploaded recordings of good behavior: storage, inspection, and files derived from them."""
