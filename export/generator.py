"""A text generator as a SavedModel: text in, its continuation or its answer out."""

from typing import Any, ClassVar

import tensorflow as tf

from experiments.generate.run import OpenedModel, open_model
from export.module import ExportedModule, require
from macaron_tf.decoding import Controls, Prompts
from macaron_tf.special_ids import PAD

MAX_TOKENS = 1024


class GeneratorModule(ExportedModule):
    """A model that continues or answers text by sampling.

    Signature `serving_default`, all inputs `(B,)`: `text` strings; `temperature` float32, 0 for
    greedy decoding; `top_k` int32, 0 for no limit; `top_p` float32, 1 for no limit; `seed` int32;
    `max_tokens` int32, the most new tokens (up to 1,024, or the model's last position). Outputs:
    `completion (B,)` strings, without the given text; `log_prob (B,)` float32, natural logarithm;
    `tokens (B,)` int32, the number of new tokens with the end token. They equal those of
    `experiments.generate` with the same settings and seed, whatever else is in the batch.

    The text of a text-to-text run is a line as `experiments.text_to_text predict` takes it, without
    the task's name; temperature 0 gives the greedy answer.

    A text that leaves no room for new tokens is an InvalidArgumentError, and so is a temperature,
    top_k or top_p that `experiments.generate` refuses.
    """

    inputs: ClassVar = {
        "text": tf.string,
        "temperature": tf.float32,
        "top_k": tf.int32,
        "top_p": tf.float32,
        "seed": tf.int32,
        "max_tokens": tf.int32,
    }

    def __init__(self, opened: OpenedModel):
        super().__init__(opened.network, opened.vocabulary)
        self.text_generator = opened.generator()

    def serve(
        self,
        text: tf.Tensor,
        temperature: tf.Tensor,
        top_k: tf.Tensor,
        top_p: tf.Tensor,
        seed: tf.Tensor,
        max_tokens: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        generator = self.text_generator
        rows = generator.rows(text)  # (B, None)
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        message = (
            f"a text is too long to go on in {generator.longest} tokens: shorten it; "
            "or empty, where the model begins none"
        )
        # An encoder's message, when it gets the padded rows, is less clear.
        rows = require(generator.fits(lengths), message, rows).to_tensor(PAD)
        limits, room = tf.clip_by_value(max_tokens, 0, MAX_TOKENS), generator.room(lengths)
        limits = limits if room is None else tf.minimum(limits, room)
        usable = (temperature >= 0) & (top_k >= 0) & (top_p > 0) & (top_p <= 1)
        message = "temperature and top_k must be 0 or more, top_p above 0 and at most 1"
        seed = require(usable, message, seed)
        rules = generator.rules(Controls(temperature, top_k, top_p))
        found = generator.generate(Prompts(rows, lengths, limits, seed[:, None]), rules)
        texts = generator.detokenizer.in_graph(found["ids"][:, 0])
        begun = tf.strings.regex_replace(texts, "^ ", "")
        return {
            "completion": tf.where(generator.begins(lengths), begun, texts),
            "log_prob": found["log_probs"][:, 0],
            "tokens": found["lengths"][:, 0],
        }


def generator_module(place: str, checkpoint: str | None) -> tuple[ExportedModule, dict[str, Any]]:
    """A text generator and the record of its export; see `export.places.open_module`."""
    opened = open_model(place, checkpoint)
    record = {"run": opened.name, **opened.weights_record, "longest": opened.longest}
    return GeneratorModule(opened), record
