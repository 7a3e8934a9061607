"""The ledger's migrations, run when a ledger is opened; see `database`."""
