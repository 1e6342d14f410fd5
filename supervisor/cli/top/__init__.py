"""`supervisor top`: what `status` shows, live, with keys to pause, scale, retry and cancel.

command.py    the command
loop.py       keys, signals and looks, one after another
terminal.py   the alternate screen, taken and given back whatever happens
keys.py       what a terminal sends, as names of keys
poller.py     a thread that looks at the database and does what was asked of it
actions.py      what keys may ask of the database
view.py       what is selected and what a key means; pure
panes.py      pools, workers and types as rows; pure
frame.py      everything put together for a width and a height; pure
"""
