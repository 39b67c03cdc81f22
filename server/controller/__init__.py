"""The controller: ends expired leases, wakes workers, rates matches, sends webhooks, deletes what is old."""
