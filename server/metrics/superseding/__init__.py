"""Points of an attempt that a later one, which resumed at an earlier step, has superseded."""
