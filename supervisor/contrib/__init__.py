"""Integrations with other libraries, each loaded only by whoever names it."""
