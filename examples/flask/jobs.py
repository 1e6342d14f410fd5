import time
from collections import Counter
from pathlib import Path

from supervisor import Context, task


@task
def count(ctx: Context, path: str) -> dict[str, int]:
    lines = Path(path).read_text().splitlines()
    words: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        words.update(line.split())
        time.sleep(0.1)  # as if it were work
        ctx.progress(number / len(lines), f"line {number}")
    return dict(words.most_common(3))
