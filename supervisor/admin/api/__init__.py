"""The JSON API, one file per subject."""
