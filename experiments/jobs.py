"""Jobs in parallel, each on its share of the CPUs."""

import concurrent.futures
import os
import queue
import statistics
import time
from collections.abc import Callable


def at_once(jobs: int, tasks: list[Callable[[], str]]) -> None:
    """Runs tasks in `jobs` threads, each on its share of the CPUs; prints the progress.

    Args:
        tasks: each returns the words of its line of progress.

    Raises:
        UserError: a task's; tasks that have not begun are cancelled.
    """
    shares = queue.SimpleQueue()
    for number in range(jobs):
        shares.put(number)

    def take_share() -> None:
        if hasattr(os, "sched_setaffinity"):  # Linux
            cpus = sorted(os.sched_getaffinity(0))
            # Of this thread and the processes that it starts.
            os.sched_setaffinity(0, cpus[shares.get() :: jobs] or cpus)

    def timed(task: Callable[[], str]) -> tuple[str, float]:
        began = time.monotonic()
        return task(), (time.monotonic() - began) / 60

    spent = []  # minutes of each task that had work to do
    with concurrent.futures.ThreadPoolExecutor(jobs, initializer=take_share) as pool:
        waiting = [pool.submit(timed, task) for task in tasks]
        try:
            for done, finished in enumerate(concurrent.futures.as_completed(waiting), 1):
                what, minutes = finished.result()
                spent += [minutes] if minutes > 0.1 else []
                left = ""
                if spent:
                    minutes = (len(tasks) - done) / jobs * statistics.mean(spent)
                    left = f"; {minutes:.0f} min left at most"
                print(f"[{done}/{len(tasks)}] {what}{left}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
