"""The command line: parse and print, no logic."""
