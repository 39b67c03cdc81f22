"""`ludus up`: all roles on one machine, as child processes."""
