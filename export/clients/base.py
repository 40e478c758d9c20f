"""What the clients share: lines in batches, in order; candidates and errors."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence


class TranslationError(Exception):
    """The server refused a request or gave no answer; `status` is its HTTP status or gRPC code."""

    def __init__(self, message: str, status: int | str | None = None):
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One translation and the model's score for it (higher is better)."""

    text: str
    score: float


class Client(abc.ABC):
    """What both protocols share: lines in batches, in order; a subclass runs one request."""

    def __init__(self, batch_size: int):
        self._batch_size = batch_size

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The best translation of each line, in order; raises as `n_best`."""
        return [candidates[0].text for candidates in self.n_best(lines)]

    def n_best(self, lines: Sequence[str]) -> list[list[Candidate]]:
        """All translations of each line, best first.

        Raises:
            TranslationError: the server refused, or could not be reached.
        """
        result = []
        for rows in self._slices(len(lines)):
            outputs = self._run("serving_default", {"text": list(lines[rows])})
            for texts, scores in zip(outputs["translations"], outputs["scores"], strict=True):
                pairs = zip(texts, scores, strict=True)
                result.append([Candidate(text, score) for text, score in pairs])
        return result

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Log-probabilities (natural logarithm, summed over tokens) of given translations.

        Raises:
            ValueError: unequal numbers of lines.
            TranslationError: the server refused, or could not be reached.
        """
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources)} sources but {len(targets)} targets")
        result = []
        for rows in self._slices(len(sources)):
            inputs = {"source": list(sources[rows]), "target": list(targets[rows])}
            result += self._run("score", inputs)["log_probs"]
        return result

    def _slices(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self._batch_size):
            yield slice(start, start + self._batch_size)

    @abc.abstractmethod
    def _run(self, signature: str, inputs: dict[str, list[str]]) -> dict[str, list]:
        """Runs one request of a signature; outputs by name."""
