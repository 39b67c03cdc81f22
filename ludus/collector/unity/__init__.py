"""Unity players at a collector: ML-Agents' protocol, `communicator_objects.UnityToExternalProto/Exchange`."""
