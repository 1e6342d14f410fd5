"""What runs a job: claim, execute, settle."""
