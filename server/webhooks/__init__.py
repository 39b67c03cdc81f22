"""Webhooks: who else wants to hear of what happens to runs. For what is sent to them see `server.webhooks.deliveries`."""
