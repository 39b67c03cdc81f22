"""Deliveries: events become messages for webhooks, and messages are sent until they have arrived."""
