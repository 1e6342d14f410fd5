import time
from collections import Counter
from pathlib import Path

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


@task(takes_context=True)
def count(context, path):
    lines = Path(path).read_text().splitlines()
    words = Counter()
    for number, line in enumerate(lines, 1):
        words.update(line.split())
        time.sleep(0.1)  # as if it were work
        context.job.progress(number / len(lines), f"line {number}")
    return dict(words.most_common(3))
