"""The supervisor process and what it manages: pools, templates, workers, the maintainer and the admin process."""
