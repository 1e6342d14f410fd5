"""What the models alone need: `bare_memory.py PATH` loads as many as BENCH_MODELS says, scores the picture with each of
them, and prints the PSS of this process in bytes.
"""

import sys
from pathlib import Path

from scoring import NAMES, Scorer

scorers = [Scorer() for _ in NAMES]
for scorer in scorers:
    scorer.score(sys.argv[1])
lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
print(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")))
