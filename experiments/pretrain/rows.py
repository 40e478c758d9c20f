"""A corpus's rows as a recipe's objective reads them: shuffled, or as texts that go on."""

import tensorflow as tf

from experiments.pretrain.recipe import PretrainingRecipe
from macaron_tf.data.corpus.reading import PretrainingCorpus, stream_dataset


def training_rows(
    recipe: PretrainingRecipe, corpus: PretrainingCorpus, batch_size: int, start: int
) -> tf.data.Dataset:
    """Endless batches of a process's training rows, from a micro-batch on."""
    if recipe.has_memory:
        return stream_dataset(corpus, "train", batch_size, start)
    numbered = recipe.masking.duplicates is not None
    return corpus.dataset("train", batch_size, recipe.training.seed, start, numbered=numbered)


def validation_rows(recipe: PretrainingRecipe, corpus: PretrainingCorpus) -> tf.data.Dataset:
    """Batches of all validation rows, in their order; with a memory, of equally long texts."""
    if recipe.has_memory:
        return stream_dataset(corpus, "validation", recipe.batch_size, repeat=False)
    return corpus.dataset(
        "validation",
        recipe.batch_size,
        None,
        repeat=False,
        drop_remainder=False,
        numbered=recipe.masking.duplicates is not None,
    )
