"""What a person sees while a corpus is prepared: a bar in a terminal, else a line now and then."""

import sys
import time

import rich.console
import rich.progress

_SECONDS = 30  # between two lines where there is no terminal


class CorpusProgress:
    """Documents, rows, tokens and tokens a second; used in a `with`.

    Args:
        total: number of documents, or None where it is not known.
        stream: where to write; standard error if None.
    """

    def __init__(self, total: int | None, stream=None):
        self._stream = stream or sys.stderr
        self._total = total
        self._done = 0
        self._bar: rich.progress.Progress | None = None
        self._task = None
        self._began = self._last = time.monotonic()

    def __enter__(self) -> "CorpusProgress":
        if self._stream.isatty():
            self._bar = rich.progress.Progress(
                rich.progress.TextColumn("{task.completed:,.0f} documents"),
                rich.progress.BarColumn(bar_width=None),
                rich.progress.TextColumn("{task.description}"),
                console=rich.console.Console(file=self._stream),
                refresh_per_second=2,
            )
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()
        return self

    def __exit__(self, *exception) -> None:
        if self._bar:
            self._bar.stop()

    def skipped(self) -> None:
        """Counts a document that an earlier run has written."""
        self._done += 1
        self._began = time.monotonic()
        if self._bar and self._done % 100 == 0:
            self._bar.update(self._task, completed=self._done, description="going on")

    def counted(self) -> None:
        """Counts a document that is only looked at, to know how many there are."""
        self._done += 1
        if self._done % 100 == 0:
            self._show("counting lines")

    def written(self, count: int, rows: int, tokens: int, before: int) -> None:
        """Counts the documents of a shard.

        Args:
            count: documents of the shard.
            rows: rows of all shards, those of documents that came again included.
            tokens: ids of all shards.
            before: ids of the shards that earlier runs have written.
        """
        self._done += count
        rate = (tokens - before) / max(time.monotonic() - self._began, 1e-9)
        self._show(f"{rows:,} rows  {tokens:,} tokens  {rate:,.0f} tokens/s")

    def _show(self, text: str) -> None:
        now = time.monotonic()
        if self._bar:
            self._bar.update(self._task, completed=self._done, description=text)
        elif now - self._last >= _SECONDS:
            self._last = now
            of = f" of {self._total:,}" if self._total else ""
            print(f"{self._done:,}{of} documents  {text}", file=self._stream, flush=True)
