"""The child process that checks one handler and its middleware.

`python -P -m supervisor.ops.doctor.probe FD HANDLER one|batch [MIDDLEWARE …]`; HANDLER is "-" for a pool with a
command.

The pool's path, the folder and the options are pickled on standard input. The answer goes to a separate descriptor,
because the handler's module may print anything.
"""

from __future__ import annotations

import json
import os
import pickle
import sys


def main() -> int:
    from supervisor.domain.middleware import MiddlewareError
    from supervisor.domain.middleware import load as load_middleware
    from supervisor.system import standard_streams
    from supervisor.worker.handler import HandlerError
    from supervisor.worker.loader import load, search_first

    standard_streams.make_safe()
    answer, handler, batches = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "batch"
    middleware = sys.argv[4:]
    path, folder, table = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our parent
    search_first(path, folder)
    problem = ""
    options: list[tuple[list[str], str]] = []
    try:
        if handler != "-":
            load(handler, batches=batches).check_options(table)
    except HandlerError as error:
        problem = " ".join(str(error).split())
        options = [(list(key), text) for key, text in error.options]
    broken: list[tuple[int, str]] = []
    for index, name in enumerate(middleware):
        try:
            load_middleware([name])
        except MiddlewareError as error:
            broken.append((index, " ".join(str(error).split())))
    os.write(answer, json.dumps({"problem": problem, "options": options, "middleware": broken}).encode())
    return 0


if __name__ == "__main__":
    # Do not wait for threads and exit handlers of the module: the answer is complete.
    code = main()
    sys.stdout.flush()
    os._exit(code)
