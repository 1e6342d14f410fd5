"""RQ on Redis: its worker forks a process for each job. Results are not kept."""

import os

import tally


def noop():
    tally.mark()


def arrive(number):
    tally.arrive(number)


def main():
    from driver import drive
    from redis import Redis
    from rq import Queue

    queue = Queue("bench", connection=Redis.from_url(os.environ["BENCH_REDIS"]))
    drive(
        lambda: queue.enqueue("rq_app.noop", result_ttl=0),
        lambda number: queue.enqueue("rq_app.arrive", number, result_ttl=0),
        lambda jobs: queue.enqueue_many([Queue.prepare_data("rq_app.noop", result_ttl=0) for _ in range(jobs)]),
    )


if __name__ == "__main__":
    main()
