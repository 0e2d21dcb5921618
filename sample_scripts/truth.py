"""A stopwatch by which a sample script knows its own costs, to hold a profiler's figures against.

    with truth("forward"):                        one span: adds its seconds, counts 1
    @truth("evaluation")                          the same for every call of a function
    for batch in truth.batches(loader):           times the loader, counts what it gives
    truth.count("steps")                          counts, times nothing

At exit {name: {"seconds": s, "count": n}} goes as JSON to the file that the environment variable
SAMPLE_TRUTH names; without it nothing is written. Spans of different names may nest: each has the
inner one's seconds too. What happens in the loader's worker processes is not in it.
"""

import atexit
import json
import multiprocessing
import os
from collections import defaultdict
from contextlib import ContextDecorator
from pathlib import Path
from time import perf_counter

seconds = defaultdict(float)
counts = defaultdict(int)


class truth(ContextDecorator):
    """Adds the seconds of a `with` block, or of each call of a function, to `name`."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.started = perf_counter()

    def __exit__(self, *exception):
        seconds[self.name] += perf_counter() - self.started
        counts[self.name] += 1

    @staticmethod
    def count(name, n=1):
        counts[name] += n

    class batches:
        """Iterates over a loader like the loader itself, and tells its four costs apart.

        loader_start: making the iterator; first_batch: waiting for the first batch; data_wait:
        waiting for the others; loader_end: asking once more and hearing that there are none left.
        """

        def __init__(self, loader):
            self.loader = loader

        def __len__(self):
            return len(self.loader)

        def __iter__(self):
            truth.count("epochs")
            with truth("loader_start"):
                iterator = iter(self.loader)
            name = "first_batch"
            while True:
                started = perf_counter()
                try:
                    batch = next(iterator)
                except StopIteration:
                    name = "loader_end"
                    return
                finally:
                    seconds[name] += perf_counter() - started
                    counts[name] += 1
                name = "data_wait"
                truth.count("iterations")
                truth.count("samples", len(batch[0]))
                yield batch


@atexit.register
def write_truth():
    path = os.environ.get("SAMPLE_TRUTH")
    if path and multiprocessing.parent_process() is None:
        table = {name: {"seconds": seconds[name], "count": counts[name]} for name in counts}
        Path(path).write_text(json.dumps(table, indent=2) + "\n")
