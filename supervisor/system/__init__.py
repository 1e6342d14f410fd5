"""The interface to Linux: processes, signals, shared memory, messages. Knows nothing of jobs or databases."""
