"""The child that tries one handler: `python -P -m supervisor.doctor.probe FD FOLDER HANDLER one|batch`.

It answers on a descriptor of its own, because what the handler's module prints is not ours.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> int:
    from supervisor.worker.loader import HandlerError, load

    answer, folder, handler = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    batches = sys.argv[4] == "batch"
    sys.path.insert(0, folder)
    problem = ""
    try:
        load(handler, batches=batches)
    except HandlerError as error:
        problem = " ".join(str(error).split())
    os.write(answer, json.dumps({"problem": problem}).encode())
    return 0


if __name__ == "__main__":
    # Threads and exit handlers of the module must not keep us: the answer has been given.
    code = main()
    sys.stdout.flush()
    os._exit(code)
