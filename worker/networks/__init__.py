"""Networks: the shape of an actor (`layout`), acting without torch (`policy`), learning with it (everything else)."""
