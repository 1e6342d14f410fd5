"""Our numbers and our peers', side by side in one run: `python bench/run.py`."""
