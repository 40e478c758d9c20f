"""A translator as a SavedModel: lines in, the n best translations out."""

import tensorflow as tf

from experiments.translate.run import source_limit
from export.module import COMPILED_LENGTHS, ExportedModule, compiled_for_one, require
from export.warm_up import TEXT
from macaron_tf.decoding import BeamSearchConfig, score_ids, translate_ids
from macaron_tf.special_ids import EOS, PAD
from macaron_tf.text import PieceVocabulary


class TranslationModule(ExportedModule):
    """A translator, by beam search.

    Signature `serving_default`: `text (B,)` strings to `translations (B, N)` strings and `scores
    (B, N)` float32, best first; an empty line gives an empty translation and score 0. Signature
    `score`: `source (B,)` and `target (B,)` strings to `log_probs (B,)`, natural logarithms of
    P(target | source) with its EOS, and `tokens (B,)` int32, the number of tokens they sum.

    A line of more than `max_tokens` pieces is an InvalidArgumentError (a client's 400), not the
    translation of half a line.

    Args:
        network: the trained `EncoderDecoder`.
        compiled: requests of one line are searched in graphs that XLA compiles.
    """

    def __init__(
        self,
        network,
        vocabulary: PieceVocabulary,
        decoding: BeamSearchConfig,
        compiled: bool = False,
    ):
        super().__init__(network, vocabulary)
        self.decoding = decoding
        self.max_tokens = source_limit(network)
        self.compiled = compiled

    def functions(self):
        score = {"source": tf.string, "target": tf.string}
        return {**super().functions(), "score": (self.score, score)}

    def typical_texts(self):
        if not self.compiled:
            return super().typical_texts()
        language = self.vocabulary.languages[0]
        words = TEXT.split() * COMPILED_LENGTHS[-1]
        texts = [" ".join(words[:count]) for count in range(1, COMPILED_LENGTHS[-1])]
        sizes = [len(ids) for ids in self.vocabulary.encode_lines(texts, language)]
        found = []
        for length in COMPILED_LENGTHS:
            # The longest that fits, with its EOS.
            most = min(length - 1, self.max_tokens)
            found += [text for text, size in zip(texts, sizes, strict=True) if size <= most][-1:]
        return list(dict.fromkeys(found))

    def ids(self, lines: tf.Tensor, language: str) -> tf.Tensor:
        """Lines `(B,)` to ids `(B, L)`, each row ending in EOS, PAD after."""
        rows = self.vocabulary.encode(lines, language)
        fits = rows.row_lengths() <= self.max_tokens
        rows = require(fits, f"a line has more than {self.max_tokens} tokens: split it", rows)
        end = tf.fill([tf.shape(lines)[0], 1], EOS)
        return tf.concat([rows, end], axis=1).to_tensor(PAD)

    def serve(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        source = self.ids(text, self.vocabulary.languages[0])
        found = compiled_for_one(self.search, source) if self.compiled else self.search(source)
        n_best = self.decoding.n_best
        # (B, N, T) -> (B N, T)
        ids = tf.reshape(found["ids"], (-1, tf.shape(found["ids"])[2]))
        # (B N,) -> (B, N)
        translations = tf.reshape(self.vocabulary.decode(ids), (-1, n_best))
        empty = (source[:, 0] == EOS)[:, None]  # (B, 1)
        return {
            "translations": tf.where(empty, "", translations),
            "scores": tf.where(empty, 0.0, found["scores"]),
        }

    def search(self, source: tf.Tensor) -> dict[str, tf.Tensor]:
        """The n best outputs of ids `(B, L)`: see `translate_ids`."""
        return translate_ids(self.network, source, self.decoding, self.vocabulary.pieces)

    def score(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """The `score` signature."""
        languages = self.vocabulary.languages
        sides = self.ids(source, languages[0]), self.ids(target, languages[1])
        scored = score_ids(self.network, *sides)
        return {"log_probs": scored["log_probs"], "tokens": scored["lengths"]}
