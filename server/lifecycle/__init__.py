"""The life of a run across features: creates, claims, executes, ends and deletes runs."""
