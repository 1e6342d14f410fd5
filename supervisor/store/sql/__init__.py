"""The concerns of an opened store, a class each, for every engine: on its connection, with its statements by name."""
