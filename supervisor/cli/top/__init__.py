"""`supervisor top`: what `status` shows, live, with keys to pause, scale, retry and cancel.

command.py    the command
loop.py       the main loop: keys, signals and refreshes
terminal.py   the alternate screen; always restored at the end
keys.py       terminal input as names of keys
poller.py     a thread that reads the database and performs actions
actions.py    changes to the database that keys can request
view.py       the selection, and what each key does; pure
panes.py      pools, workers and types as rows; pure
side.py       charts and the log of a job; pure
help.py       the keys, in words; pure
frame.py      the whole screen for a width and a height; pure
"""
