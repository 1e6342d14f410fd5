"""The picture of a run."""
