"""The worker's side of a job: claim, execute, settle."""
