"""Worker hosts and their slots."""
