"""A text-to-text run that draws its answers: sampling in place of beam search."""

import tensorflow as tf

from experiments.text_to_text.framing import framed_in_graph
from experiments.text_to_text.recipe import TextRecipe
from macaron_tf.decoding import SequenceGenerator
from macaron_tf.models import EncoderDecoder
from macaron_tf.special_ids import BOS, EOS
from macaron_tf.text.base import PieceVocabulary


class TaskGenerator(SequenceGenerator):
    """Answers lines of a task, see `framed`; at temperature 0 with the likeliest tokens.

    Args:
        network: with trained weights.
        vocabulary: the one it was trained with.
        recipe: names the task and the limits of a source and of an answer.
    """

    def __init__(self, network: EncoderDecoder, vocabulary: PieceVocabulary, recipe: TextRecipe):
        super().__init__(
            network,
            vocabulary,
            recipe.max_source,
            source_start=(BOS,) if recipe.starts else (),
            answer_start=(*recipe.before, BOS),
        )
        self.task, self.max_target = recipe.task, recipe.max_target

    def rows(self, texts: tf.Tensor) -> tf.RaggedTensor:
        sources = framed_in_graph(self.task, texts)
        ids = tf.cast(self.vocabulary.encode(sources), tf.int32)  # (B, None)
        start = tf.repeat(tf.constant([self.source_start], tf.int32), ids.nrows(), axis=0)
        return tf.concat([start, ids, tf.fill([tf.shape(texts)[0], 1], EOS)], axis=1)

    def room(self, length: int | tf.Tensor) -> int:
        # The last place is for EOS, which a search puts there.
        return self.max_target - len(self.answer_start)
