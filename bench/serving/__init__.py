"""The same model behind job-supervisor and behind model servers, in one run."""
