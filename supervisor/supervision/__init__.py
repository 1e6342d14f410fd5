"""The supervisor: it starts, watches, replaces and stops the processes. docs/architecture.md lists its modules."""
