"""The duties of the maintainer, each in its own file with `run_once(now)`."""
