"""Taking over a table that an application made by hand: a plan, its print-out, its execution in one transaction."""
