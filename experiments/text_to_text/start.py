"""Where a text-to-text fine-tuning starts: a run of pre-training, or Hugging Face's T5 or BART."""

import dataclasses
from collections.abc import Callable

import numpy as np

from experiments.pretrain.recipe import CORRUPTING
from macaron_tf.errors import UserError
from macaron_tf.pretrained import load
from macaron_tf.text.base import PieceVocabulary


@dataclasses.dataclass(frozen=True, eq=False)
class TextStart:
    """An encoder-decoder that has learnt from corrupted text.

    Attributes:
        model, model_options: of the recipe.
        vocabulary: the one it was trained with.
        objective, optimizer, dtype_policy: it was trained with.
        sentinel_rows: rows of its table behind the vocabulary's.
        weights: reads them, in Keras's order.
        starts: see `TextRecipe`.
    """

    model: str
    model_options: tuple
    vocabulary: PieceVocabulary
    objective: str
    optimizer: str
    dtype_policy: str
    sentinel_rows: int
    weights: Callable[[], list[np.ndarray]]
    starts: bool = False


def read_start(given: str) -> TextStart:
    """Reads what `--init` names.

    Args:
        given: the folder of a pre-training run, or `hugging-face:DIR`.

    Raises:
        UserError: there is no such thing, or it is no encoder-decoder that can be fine-tuned.
    """
    found = load(given)
    if found.objective not in CORRUPTING:
        raise UserError(
            f"--init {given} has learnt {found.objective!r} and is no encoder-decoder: give a run "
            f"of {' or '.join(CORRUPTING)}, or a T5 or BART"
        )
    if found.vocabulary is None:
        raise UserError(f"--init {given} has no tokenizer beside it: put its files there")
    usual = {"span_corruption": "adafactor", "denoising": "adam"}[found.objective]
    return TextStart(
        found.model,
        found.model_options,
        found.vocabulary,
        found.objective,
        found.optimizer or usual,
        found.network.dtype_policy.name,
        found.config.vocab_size - found.vocabulary.size,
        found.network.get_weights,
        starts=bool(found.ends),
    )
