"""Unsupervised machine translation (XLM): denoising and back-translation."""

import dataclasses

import tensorflow as tf

from macaron_tf.decoding.beam_search import BeamSearchConfig
from macaron_tf.decoding.translator import translate_ids
from macaron_tf.models.encoder_decoder import Backward
from macaron_tf.objectives.base import Batch, Sums
from macaron_tf.objectives.denoising import DenoisingObjective
from macaron_tf.objectives.translation import TranslationObjective
from macaron_tf.settings import Count, Dropout

_SIDES = ("source", "target")


@dataclasses.dataclass(frozen=True)
class BackTranslationObjective(DenoisingObjective):
    """Unsupervised translation objective, which trains on unpaired texts of two languages.

    A training batch contains unrelated texts `source (B, S)` and `target (B, T)`. On each text, the
    network learns two tasks, denoising and back-translation. In denoising, the network reconstructs
    the text from a noised copy. In back-translation, the network first translates the text into the
    other language by greedy search without dropout. Then the network learns to translate the result
    back to the text. The loss is the mean cross-entropy over all target tokens in both tasks and
    both languages. An evaluation batch contains paired texts, and the loss is the loss of a
    `TranslationObjective`.

    Attributes:
        label_smoothing: probability that is spread evenly over the whole vocabulary.
        length: maximum of S and T in tokens, with EOS. A back-translation is also limited to 1.3
            times the length of the text plus 5 tokens.

    References: Conneau and Lample 2019 (XLM), section 4.2; Lample et al. 2018, "Phrase-Based &
    Neural Unsupervised Machine Translation", section 3.
    """

    label_smoothing: Dropout = 0.0
    length: Count = 256

    def preparation(self, spec, vocabulary):
        """Returns a function that adds `noised_source` and `noised_target` to a batch."""
        corrupt = self.corruption(vocabulary, self.length)
        pad, eos = vocabulary.special.pad, vocabulary.special.end

        def add_noised(batch: Batch, seed: tf.Tensor) -> Batch:
            result = dict(batch)
            for index, side in enumerate(_SIDES):
                ids = batch[side]  # (B, L), ending in EOS
                length = tf.shape(ids)[1]
                text = tf.where(ids == eos, pad, ids)[:, : self.length]
                paddings = [[0, 0], [0, self.length - tf.shape(text)[1]]]
                text = tf.pad(text, paddings, constant_values=pad)
                text = tf.ensure_shape(text, (None, self.length))
                source, _ = corrupt(text, tf.stack([seed[0], 2 * seed[1] + index]))
                source = source[:, :length]
                # Inserted mask tokens may make a text longer. Cut the text, but keep an EOS.
                end = tf.where(source[:, -1:] == pad, pad, eos)
                result[f"noised_{side}"] = tf.concat([source[:, :-1], end], axis=1)
            return result

        return add_noised

    def __call__(self, network, batch: Batch, training: bool) -> Sums:
        translation_objective = TranslationObjective(self.label_smoothing, self.skip_padding)
        if not training:
            return translation_objective(network, batch, training)
        lengths = {"max_length_ratio": 1.3, "max_length_offset": 5, "max_length": self.length}
        greedy = BeamSearchConfig(beam_size=1, length_penalty=0.0, **lengths)
        losses = []
        # The ids of the encoder's and the decoder's language are 0 and 1 for translation from the
        # source language to the target language, and 1 and 0 for the opposite direction.
        for language, side in enumerate(_SIDES):
            text = batch[side]
            translator = Backward(network) if language else network
            translation = translate_ids(translator, text, greedy)["ids"][:, 0]  # (B, L)
            noised = batch[f"noised_{side}"]
            for source, source_language in ((noised, language), (translation, 1 - language)):
                languages = {
                    "source_languages": tf.fill(tf.shape(source), source_language),
                    "target_languages": tf.fill(tf.shape(text), 1 - language),
                }
                inputs = {"source": source, "target": text, **languages}
                losses.append(translation_objective(network, inputs, True))
        return {name: tf.add_n([sums[name] for sums in losses]) for name in losses[0]}
