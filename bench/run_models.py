"""Run the benchmark beside model servers: `python bench/run_models.py --help`."""

import sys
from pathlib import Path

# Started as a file, so this folder is first on the path; what we import is the package around it.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.serving.program import main  # noqa: E402 - the path comes first

if __name__ == "__main__":
    sys.exit(main())
