"""The processes that stand above the workers: supervisor, pools, templates."""
