"""Compares the artifact store with the database: what is missing, damaged, or belongs to nothing."""
