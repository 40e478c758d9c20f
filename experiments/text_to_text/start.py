"""Where a text-to-text fine-tuning starts: a run of pre-training, or Hugging Face's T5 or BART."""

import dataclasses
from collections.abc import Callable

import numpy as np

from experiments.pretrain.recipe import CORRUPTING
from experiments.pretrain.run import PretrainingRun
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderDecoderConfig, catalog
from macaron_tf.models.config import differing_fields
from macaron_tf.objectives.corruption import SENTINEL_ROWS
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
    if given.startswith("hugging-face:"):
        return _of_hugging_face(given)
    run = PretrainingRun.open(given)
    recipe = run.recipe
    if recipe.objective not in CORRUPTING:
        raise UserError(
            f"--init {given} has learnt {recipe.objective!r} and is no encoder-decoder: give a run "
            f"of {' or '.join(CORRUPTING)}"
        )
    return TextStart(
        recipe.model,
        recipe.model_options,
        run.vocabulary,
        recipe.objective,
        recipe.training.optimizer,
        recipe.training.dtype_policy,
        SENTINEL_ROWS if recipe.objective == "span_corruption" else 0,
        lambda: run.load_network().get_weights(),
    )


def _of_hugging_face(given: str) -> TextStart:
    found = load(given)
    config = found.config
    if not isinstance(config, EncoderDecoderConfig) or found.vocabulary is None:
        raise UserError(f"--init {given} is no T5 or BART with its tokenizer's files: give one")
    bart = bool(found.ends)
    base = "bart_base" if bart else "t5_small"
    known = catalog.config(base, vocab_size=config.vocab_size)
    return TextStart(
        base,
        tuple(differing_fields(config, known).items()),
        found.vocabulary,
        "denoising" if bart else "span_corruption",
        "adam" if bart else "adafactor",
        "float32",
        config.vocab_size - found.vocabulary.size,
        found.network.get_weights,
        starts=bart,
    )
