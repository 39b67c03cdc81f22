"""Numbers of the whole installation for operators: runs, workers and messages in the database."""
