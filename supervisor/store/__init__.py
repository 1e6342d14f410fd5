"""The database behind a small protocol; one folder an engine."""
