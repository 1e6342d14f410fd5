"""The duties of the maintainer, each in its own file with `run(now)`."""
