"""The concerns of an opened store, for every engine that speaks SQL: a connection, and statements by name."""
