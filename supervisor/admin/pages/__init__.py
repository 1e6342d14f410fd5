"""The dashboard: pages for people, rendered from what the API answers."""
