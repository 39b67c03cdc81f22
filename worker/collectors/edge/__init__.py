"""The learner's end of edge collectors: one process, which to the pool is as many collectors as there are places."""
