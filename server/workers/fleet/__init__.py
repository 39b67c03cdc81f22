"""The whole installation in numbers, for operators: what the database knows of runs, workers and messages."""
