"""Ours on PostgreSQL beside its peers there, in one run: `make bench-postgres`."""
