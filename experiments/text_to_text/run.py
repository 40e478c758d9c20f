"""A text-to-text run: its sources, and its answers by a search or by draws."""

import dataclasses

import tensorflow as tf

from experiments.run import Run
from experiments.text_to_text.recipe import PREFIXES, TextRecipe
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.text_tasks import in_one_line, source_text, source_texts
from macaron_tf.decoding import BeamSearchConfig, LineTranslator, SequenceGenerator
from macaron_tf.models import EncoderDecoder
from macaron_tf.special_ids import EOS
from macaron_tf.text import TextVocabulary
from macaron_tf.text.normalization import as_prompt, as_prompts


@dataclasses.dataclass(frozen=True)
class TextRun(Run):
    """A finished or running fine-tuning of an encoder-decoder."""

    recipe_class = TextRecipe

    @property
    def texts(self) -> TextVocabulary:
        """The vocabulary that cuts lines of both sides."""
        recipe = self.recipe
        return TextVocabulary(self.vocabulary, recipe.max_source, recipe.max_target, recipe.starts)

    def make_network(self) -> EncoderDecoder:
        config = self.recipe.model_config(self.vocabulary.size)
        return EncoderDecoder(config, dtype=self.recipe.training.dtype_policy)

    def writer(
        self, network: EncoderDecoder, decoding: BeamSearchConfig | None = None
    ) -> LineTranslator:
        """Writes answers, a line for a line; `decoding` is the recipe's by default."""
        recipe = self.recipe
        # A target may be as long as in training, however short the source is; the ids before
        # BOS are not searched.
        prefix = recipe.answer_start[:-1]
        longest = recipe.max_target - len(prefix)
        decoding = dataclasses.replace(
            decoding or recipe.decoding,
            max_length_ratio=0.0,
            max_length_offset=longest,
            max_length=longest,
        )
        return LineTranslator(
            network, self.texts, decoding, max_source_length=recipe.max_source, prefix=prefix
        )


def framed(task: str, line: str) -> str:
    """The source of a text, or of two with a tab between; any white space in them is a space."""
    line = as_prompt(line)
    if task in PREFIXES:
        return PREFIXES[task] + " ".join(line.split())
    first, tab, second = line.partition("\t")
    return source_text(get_task(task), first, second if tab else None)


def framed_in_graph(task: str, lines: tf.Tensor) -> tf.Tensor:
    """`framed` in a graph, `(B,)` strings to `(B,)` strings."""
    lines = as_prompts(lines)
    if task in PREFIXES:
        return tf.strings.join([PREFIXES[task], in_one_line(lines)])
    return source_texts(get_task(task), lines)


class TaskGenerator(SequenceGenerator):
    """Answers lines of a task, see `framed`; at temperature 0 with the likeliest tokens."""

    def __init__(self, network, vocabulary, task: str, max_target: int, **options):
        super().__init__(network, vocabulary, **options)
        self.task, self.max_target = task, max_target

    def rows(self, texts: tf.Tensor) -> tf.RaggedTensor:
        sources = framed_in_graph(self.task, texts)
        ids = tf.cast(self.vocabulary.encode(sources), tf.int32)  # (B, None)
        start = tf.repeat(tf.constant([self.source_start], tf.int32), ids.nrows(), axis=0)
        return tf.concat([start, ids, tf.fill([tf.shape(texts)[0], 1], EOS)], axis=1)

    def room(self, length: int | tf.Tensor) -> int:
        # The last position is for EOS, which a search puts there.
        return self.max_target - len(self.answer_start)
