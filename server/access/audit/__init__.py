"""The audit log: every change, with its token, time and address."""
