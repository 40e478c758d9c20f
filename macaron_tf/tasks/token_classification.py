"""Sequence tagging, such as named entity recognition, with a tag for each word of a sentence."""

from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import EncodedExamples
from macaron_tf.data.tasks.tags import (
    TaggedSentences,
    encode_tagged,
    encode_words,
    read_tagged,
    scheme_of,
    word_probabilities,
)
from macaron_tf.evaluation.answers import score_tags, score_words
from macaron_tf.models import EncoderTokenClassifier
from macaron_tf.objectives import TaggingObjective
from macaron_tf.tasks.base import trimmed
from macaron_tf.tasks.labelled import LabelledTask, Limits


class TokenClassification(LabelledTask):
    """Sequence tagging, as in the CoNLL shared tasks.

    The input of the signature `serving_default` is `text (B,)` strings, with words separated by
    white space. The longest sentence has W words. The outputs are `words (B, W)` and `tags (B, W)`
    strings, padded with "", and `probabilities (B, W)` float32, the probability of the predicted
    tags, padded with 0. A sentence that is longer than a row is split into windows.

    The method `outputs` returns one array of tag probabilities `(W, C)` per sentence, where C is
    the number of tags and W is the number of words in this sentence.
    """

    name = "tagger"
    pipeline = "token-classification"
    kind = "tags"

    reader = staticmethod(read_tagged)
    answer = "a tag for each word: O, B- and I-"

    def prepare(self, text: tf.Tensor) -> tuple[dict, tuple]:
        words = tf.strings.split(text)  # (B, None)
        rows, positions = encode_words(self.vocabulary, words, self.limits.max_length)
        return self.with_characters(rows), (words, positions)

    def conclude(self, computed: tf.Tensor, extras: tuple) -> dict[str, tf.Tensor]:
        words, positions = extras
        # (N, C), N words
        probabilities = word_probabilities(computed, positions, self.task.outside)
        tags = tf.gather(tf.constant(self.task.labels), tf.argmax(probabilities, axis=1))  # (N,)
        return {
            "words": words.to_tensor(),
            "tags": words.with_values(tags).to_tensor(),
            "probabilities": words.with_values(tf.reduce_max(probabilities, axis=1)).to_tensor(),
        }

    def rows(self, outputs: Mapping[str, np.ndarray]) -> list[dict[str, list]]:
        counts = (outputs["words"] != b"").sum(axis=1)  # (B,)
        return trimmed(super().rows(outputs), counts)

    def encode(self, vocabulary, examples, limits: Limits) -> EncodedExamples:
        return encode_tagged(vocabulary, examples, limits.max_length)

    def make_network(self, config, head_dropout, policy) -> EncoderTokenClassifier:
        return EncoderTokenClassifier(config, self.task.num_classes, head_dropout, dtype=policy)

    @property
    def objective(self) -> TaggingObjective:
        return TaggingObjective(self.task.num_classes)

    def outputs(self, logits, encoded: EncodedExamples, examples) -> list[np.ndarray]:
        # (W, C)
        probabilities = word_probabilities(
            tf.constant(logits), encoded.positions, self.task.outside
        )
        return np.split(probabilities.numpy(), encoded.splits[1:-1])

    def decide(self, outputs: list[np.ndarray]) -> list[list[str]]:
        return [self._tag_names(values.argmax(axis=1)) for values in outputs]

    def score(self, predictions: list[list[str]], examples: TaggedSentences) -> dict[str, float]:
        truths = [self._tag_names(tags) for tags in examples.labels]
        if not (scheme := scheme_of(self.task.labels)):
            return self.with_score(score_words(predictions, truths))
        return self.with_score(score_tags(predictions, truths, scheme))

    def constants(self, train: TaggedSentences, examples: TaggedSentences) -> Iterator[list]:
        return ([[tag] * len(words) for words in examples.words] for tag in self.task.labels)

    def line(self, answer: dict[str, list]) -> str:
        """Formats a sentence in CoNLL's format: one word and tag per line, then an empty line."""
        pairs = zip(answer["words"], answer["tags"], strict=True)
        return "".join(f"{word}\t{tag}\n" for word, tag in pairs) + "\n"

    def _tag_names(self, tags: np.ndarray) -> list[str]:
        return [self.task.labels[tag] for tag in tags]
