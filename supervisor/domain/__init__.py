"""Pure decisions and values: no input, no output, no clock."""
