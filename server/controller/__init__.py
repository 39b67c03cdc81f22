"""The role that reconciles the database with the world: leases, waiting runs, retention, ratings, webhooks."""
