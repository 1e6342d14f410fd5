"""The supervisor: it starts, watches, replaces and stops the processes; see docs/internals/architecture.md."""
