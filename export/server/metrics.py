"""Counts and latencies of predictions, in Prometheus's format by TensorFlow Serving's names."""

import bisect
import collections
import contextlib
import itertools
import threading
import time
from collections.abc import Iterator

from export.server.errors import from_exception

PATH = "/monitoring/prometheus/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COUNT = ":tensorflow:serving:request_count"
_LATENCY = ":tensorflow:serving:request_latency"
_BOUNDS = [10 * 1.8**i for i in range(33)]  # microseconds, as TensorFlow Serving's


class Metrics:
    """Predictions of one model since the start: their number by status, and how long they took.

    Args:
        model: its name.
    """

    def __init__(self, model: str):
        self._model = model.replace("\\", r"\\").replace('"', r"\"")
        self._lock = threading.Lock()
        self._requests: collections.Counter[str] = collections.Counter()  # by status
        # By protocol: requests in each bucket, and the sum of their microseconds.
        self._latencies = {name: [0] * (len(_BOUNDS) + 1) for name in ("REST", "GRPC")}
        self._sums = dict.fromkeys(self._latencies, 0.0)

    @contextlib.contextmanager
    def measured(self, protocol: str) -> Iterator[None]:
        """Counts the request within the `with`, by the status that its error has."""
        started, status = time.monotonic(), "CANCELLED"
        try:
            yield
            status = "OK"
        except Exception as error:
            status = from_exception(error).code.name
            raise
        finally:
            passed = (time.monotonic() - started) * 1e6
            with self._lock:
                self._requests[status] += 1
                self._latencies[protocol][bisect.bisect_left(_BOUNDS, passed)] += 1
                self._sums[protocol] += passed

    def text(self) -> str:
        """The page that Prometheus reads."""
        with self._lock:
            requests, sums = dict(self._requests), dict(self._sums)
            latencies = {protocol: list(counts) for protocol, counts in self._latencies.items()}
        lines = [f"# TYPE {_COUNT} counter"]
        for status, count in sorted(requests.items()):
            lines.append(f'{_COUNT}{{model_name="{self._model}",status="{status}"}} {count}')
        lines.append(f"# TYPE {_LATENCY} histogram")
        for protocol, counts in latencies.items():
            labels = f'model_name="{self._model}",API="Predict",entrypoint="{protocol}"'
            totals = list(itertools.accumulate(counts))
            for bound, total in zip(
                [f"{bound:g}" for bound in _BOUNDS] + ["+Inf"], totals, strict=True
            ):
                lines.append(f'{_LATENCY}_bucket{{{labels},le="{bound}"}} {total}')
            lines.append(f"{_LATENCY}_sum{{{labels}}} {sums[protocol]:.0f}")
            lines.append(f"{_LATENCY}_count{{{labels}}} {totals[-1]}")
        return "\n".join(lines) + "\n"
