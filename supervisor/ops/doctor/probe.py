"""The child that tries one handler: `python -P -m supervisor.ops.doctor.probe FD FOLDER HANDLER one|batch`.

The pool's options come pickled on standard input. It answers on a descriptor of its own, because what the handler's
module prints is not ours.
"""

from __future__ import annotations

import json
import os
import pickle
import sys


def main() -> int:
    from supervisor.worker.loader import HandlerError, load

    answer, folder, handler = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    batches = sys.argv[4] == "batch"
    sys.path.insert(0, folder)
    table = pickle.load(sys.stdin.buffer)  # noqa: S301 - our own parent has written it
    problem = ""
    options: list[tuple[list[str], str]] = []
    try:
        load(handler, batches=batches).check_options(table)
    except HandlerError as error:
        problem = " ".join(str(error).split())
        options = [(list(key), text) for key, text in error.options]
    os.write(answer, json.dumps({"problem": problem, "options": options}).encode())
    return 0


if __name__ == "__main__":
    # Threads and exit handlers of the module must not keep us: the answer has been given.
    code = main()
    sys.stdout.flush()
    os._exit(code)
