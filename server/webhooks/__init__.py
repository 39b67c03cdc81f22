"""Webhooks: addresses that receive the events of runs, and the messages sent to them."""
