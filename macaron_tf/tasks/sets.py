"""Evaluation of a network on whole datasets."""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.distribution import is_tpu
from macaron_tf.io.progress import Progress
from macaron_tf.layers.packing import packing_scope
from macaron_tf.tasks.labelled import LabelledTask
from macaron_tf.text.words import CharacterWords

_INPUTS = ("token_ids", "segment_ids")
# Output value at padded positions, so low that no span or tag at a padded position is chosen.
_PADDING = -1e9


class RowOutputs:
    """Compiled forward pass, which computes a network's outputs batch by batch in float32.

    A `tf.function` with unknown dimensions is traced once for all shapes, and uses the network's
    current weights.

    Args:
        network: built network that maps a dict of ids to one tensor.
        names: names of the network's inputs, beginning with the name of the token ids.
        row_shape: `(R,)` if an example has R rows, and `()` otherwise.
        token_shape: `(C,)` if a token consists of C character ids, and `()` otherwise.
    """

    def __init__(
        self,
        network: keras.Model,
        names: Sequence[str],
        row_shape: tuple[int, ...] = (),
        token_shape: tuple[int, ...] = (),
    ):
        shape = (None, *row_shape, None)
        first, spec = (tf.TensorSpec(s, tf.int32) for s in ((*shape, *token_shape), shape))
        # A partial, because TensorFlow counts the traces of a method over all objects. It would
        # warn about retracing in a grid search, which traces each network once.
        forward = functools.partial(_forward, network, names)
        signature = [first, *[spec] * (len(names) - 1)]
        self._function = tf.function(forward, input_signature=signature, autograph=False)

    def fill(
        self, array: np.ndarray, batches: Iterable[tuple[np.ndarray, tuple[np.ndarray, ...]]]
    ) -> np.ndarray:
        """Computes the outputs of rows, writes them into `array`, and returns `array`.

        Args:
            array: array `(N, ...)` float32. If the outputs of a batch are shorter than `array`
                along an axis, the rest of the axis remains unchanged.
            batches: pairs of row indices `(B,)` and a tuple of inputs in the order of `names`. The
                index -1 marks a row of padding.
        """
        with Progress("computing", "rows", len(array)) as progress:
            for rows, arrays in batches:
                outputs = self._function(*arrays).numpy()
                is_real, slices = rows >= 0, tuple(slice(size) for size in outputs.shape[1:])
                array[(rows[is_real], *slices)] = outputs[is_real]
                progress.advance(np.count_nonzero(is_real))
        return array


def _forward(network: keras.Model, names: Sequence[str], *inputs: tf.Tensor) -> tf.Tensor:
    packed = contextlib.nullcontext() if is_tpu(tf.distribute.get_strategy()) else packing_scope()
    with packed:
        outputs = network(dict(zip(names, inputs, strict=True)), training=False)
    return tf.cast(outputs, tf.float32)  # (B, ...)


class SetOutputs:
    """Forward pass of a task's network over whole datasets, with `batch_size` examples a batch."""

    def __init__(self, task: LabelledTask, batch_size: int):
        self.task, self.batch_size = task, batch_size
        characters = task.vocabulary if isinstance(task.vocabulary, CharacterWords) else None
        self._token_shape = (characters.max_characters,) if characters else ()
        self._names = (*_INPUTS, *("language_ids",) * task.limits.embeds_languages)
        self._outputs = RowOutputs(task.network, self._names, task.row_shape, self._token_shape)

    def logits(self, data: ExampleBatches) -> np.ndarray:
        """Computes the network's outputs `(N, ...)` for N examples, padded with -1e9."""
        rows = (len(data), *self.task.row_shape, data.lengths[-1])
        ids = dict.fromkeys(self._names, keras.KerasTensor(rows, "int32"))
        ids["token_ids"] = keras.KerasTensor((*rows, *self._token_shape), "int32")
        shape = self.task.network.compute_output_spec(ids).shape
        inputs = ((indices, tuple(batch.values())) for indices, batch in self.batches(data))
        return self._outputs.fill(np.full(shape, _PADDING, np.float32), inputs)

    def batches(self, data: ExampleBatches) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
        """Yields the indices `(B,)` of the examples in each batch, and a dict of the inputs.

        The index -1 marks an example of padding.
        """
        for batch in data.evaluation_dataset().as_numpy_iterator():
            with_languages = {"language_ids": np.zeros_like(batch["token_ids"]), **batch}
            yield batch["index"], {name: with_languages[name] for name in self._names}

    def compute(self, examples: Any) -> Any:
        """Computes the result of `LabelledTask.outputs` for examples. Labels are ignored."""
        task = self.task
        encoded = task.encoded(task.vocabulary, examples, task.limits)
        data = ExampleBatches(encoded, self.batch_size)
        return task.outputs(self.logits(data), encoded, examples)
