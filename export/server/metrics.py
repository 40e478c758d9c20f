"""Request counts and latencies in Prometheus format, with TensorFlow Serving's metric names."""

import bisect
import collections
import contextlib
import functools
import itertools
import json
import threading
import time
from collections.abc import Iterable, Iterator

from export.server.errors import from_exception

PATH = "/monitoring/prometheus/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COUNT = ":tensorflow:serving:request_count"
_LATENCY = ":tensorflow:serving:request_latency"
# Upper bounds of TensorFlow Serving's histogram buckets, in microseconds.
_BOUNDS = [10 * 1.8**i for i in range(33)]
_quoted = functools.partial(json.dumps, ensure_ascii=False)  # quotes the value of a label


class Metrics:
    """Metrics of predictions since the start of the server: request counts and latencies.

    Args:
        models: names of models whose latency histograms are listed even before the first
            prediction.
    """

    def __init__(self, models: Iterable[str]):
        self._lock = threading.Lock()
        # Number of requests for each pair of model and status.
        self._requests: collections.Counter[tuple[str, str]] = collections.Counter()
        # For each pair of model and protocol, the number of requests in each bucket, and the total
        # latency in microseconds.
        self._latencies: dict[tuple[str, str], list[int]] = collections.defaultdict(
            lambda: [0] * (len(_BOUNDS) + 1)
        )
        self._sums: dict[tuple[str, str], float] = collections.defaultdict(float)
        for key in itertools.product(models, ("REST", "GRPC")):
            self._latencies[key], self._sums[key] = [0] * (len(_BOUNDS) + 1), 0.0

    @contextlib.contextmanager
    def measure(self, model: str, protocol: str) -> Iterator[None]:
        """Returns a context manager that counts one request, with its latency and its status.

        The status is "OK", or the code of the exception that ends the `with` block.

        Args:
            model: name of the model.
            protocol: "REST" or "GRPC".
        """
        start_time, status = time.monotonic(), "CANCELLED"
        try:
            yield
            status = "OK"
        except Exception as error:
            status = from_exception(error).code.name
            raise
        finally:
            microseconds = (time.monotonic() - start_time) * 1e6
            with self._lock:
                self._requests[model, status] += 1
                self._latencies[model, protocol][bisect.bisect_left(_BOUNDS, microseconds)] += 1
                self._sums[model, protocol] += microseconds

    def text(self) -> str:
        """Returns the metrics in Prometheus text format."""
        with self._lock:
            requests, sums = dict(self._requests), dict(self._sums)
            latencies = {key: list(counts) for key, counts in self._latencies.items()}
        lines = [f"# TYPE {_COUNT} counter"]
        for (model, status), count in sorted(requests.items()):
            lines.append(f'{_COUNT}{{model_name={_quoted(model)},status="{status}"}} {count}')
        lines.append(f"# TYPE {_LATENCY} histogram")
        for (model, protocol), counts in latencies.items():
            labels = f'model_name={_quoted(model)},API="Predict",entrypoint="{protocol}"'
            totals = list(itertools.accumulate(counts))
            for bound, total in zip(
                [f"{bound:g}" for bound in _BOUNDS] + ["+Inf"], totals, strict=True
            ):
                lines.append(f'{_LATENCY}_bucket{{{labels},le="{bound}"}} {total}')
            lines.append(f"{_LATENCY}_sum{{{labels}}} {sums[model, protocol]:.0f}")
            lines.append(f"{_LATENCY}_count{{{labels}}} {totals[-1]}")
        return "\n".join(lines) + "\n"
