"""The game machine's side of Unity: launches builds, is the trainer that they see, and takes them to a run."""
