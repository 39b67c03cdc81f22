"""The connection to the system of record: engine and transactions, clock, ids, migrations."""
