"""The measurements: one file each. To add one, write its file (see bench/trial.py) and name it here. The results print
its docstring; bench/report.py makes its table, and bench/goals.py has what a run is checked against.
"""

from bench.measurements import (
    burst,
    claim_cost,
    claim_wait,
    enqueue,
    fairness,
    images,
    latency,
    model_memory,
    recovery,
    throughput,
    warm_start,
)
from bench.trial import Measurement

# In the order of a run: the sensitive ones first, while the machine is cool and its disk is quiet.
MEASUREMENTS: dict[str, Measurement] = {
    "latency": latency,
    "recovery": recovery,
    "warm_start": warm_start,
    "model_memory": model_memory,
    "images": images,
    "burst": burst,
    "throughput": throughput,
    "enqueue": enqueue,
    "claim_wait": claim_wait,
    "fairness": fairness,
    "claim_cost": claim_cost,
}
