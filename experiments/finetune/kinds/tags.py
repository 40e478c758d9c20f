"""A tag for each word."""

import collections
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from experiments.finetune.kinds.base import Limits, TaskKind
from macaron_tf.data.tasks.tags import (
    EncodedTaggedSentences,
    TaggedSentences,
    at_spaces,
    encode_tagged,
    read_tagged,
    scheme_of,
    word_probabilities,
)
from macaron_tf.evaluation.reading import score_tags, score_words
from macaron_tf.models import EncoderTagger
from macaron_tf.objectives import TaggingObjective


class Tags(TaskKind):
    """Tasks of CoNLL's kind. Outputs are the tags' probabilities, `(words, C)` a sentence."""

    reader = staticmethod(read_tagged)
    answer = "a tag for each word: O, B- and I-"

    def of_texts(self, *columns: Sequence[str]) -> TaggedSentences:
        (lines,) = columns
        return TaggedSentences([at_spaces(line) for line in lines], None)

    def encode(self, vocabulary, examples, limits: Limits) -> EncodedTaggedSentences:
        return encode_tagged(vocabulary, examples, limits.max_length)

    def network(self, config, head_dropout, policy) -> EncoderTagger:
        return EncoderTagger(config, self.task.num_classes, head_dropout, dtype=policy)

    @property
    def objective(self) -> TaggingObjective:
        return TaggingObjective(self.task.num_classes)

    def outputs(
        self, logits, encoded: EncodedTaggedSentences, examples, limits, tuned
    ) -> list[np.ndarray]:
        # (W, C)
        found = word_probabilities(tf.constant(logits), encoded.positions, self.task.outside)
        return np.split(found.numpy(), encoded.splits[1:-1])

    def decide(self, outputs: list[np.ndarray]) -> list[list[str]]:
        return [self._named(values.argmax(axis=1)) for values in outputs]

    def score(self, predictions: list[list[str]], examples: TaggedSentences) -> dict[str, float]:
        truths = [self._named(tags) for tags in examples.labels]
        if not (scheme := scheme_of(self.task.labels)):
            return self.with_score(score_words(predictions, truths))
        return self.with_score(score_tags(predictions, truths, scheme))

    def lines(self, outputs: list[np.ndarray], examples: TaggedSentences) -> str:
        """CoNLL's columns: a line a word, with its tag, and an empty line after a sentence."""
        sentences = zip(examples.words, self.decide(outputs), strict=True)
        return "".join(
            "".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n"
            for words, tags in sentences
        )

    def baseline(self, train: TaggedSentences) -> Callable[[TaggedSentences], list[list[str]]]:
        """Gives each word its most frequent tag of the training set; a new one is outside."""
        counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
        tags = itertools.chain.from_iterable(train.labels)
        for word, tag in zip(itertools.chain.from_iterable(train.words), tags, strict=True):
            counts[word][int(tag)] += 1
        usual = {word: self.task.labels[c.most_common(1)[0][0]] for word, c in counts.items()}
        outside = self.task.labels[self.task.outside]
        return lambda examples: [
            [usual.get(word, outside) for word in words] for words in examples.words
        ]

    def _named(self, tags: np.ndarray) -> list[str]:
        return [self.task.labels[tag] for tag in tags]
