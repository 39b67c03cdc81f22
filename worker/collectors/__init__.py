"""The learner's side of the collectors: their processes, behaviors, events and step quotas."""
