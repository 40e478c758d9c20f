"""Low-rank updates of pre-trained weights (LoRA).

Reference: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.
"""

import keras

from macaron_tf.variables import spec_of


def add_low_rank_updates(layer: keras.layers.Layer, rank: int) -> None:
    """Freezes a built layer, and adds updates A B to its projections to attention heads.

    The update of a matrix `(D, N)` has the factors A `(D, rank)` and B `(rank, N)`, which are
    trained. B is zero at first, so that no output changes.
    """
    projections = [
        part
        for part in layer._flatten_layers()
        if isinstance(part, keras.layers.Dense) and spec_of(part.kernel).axes[1:] == ("heads",)
    ]
    if not projections:
        raise ValueError("the network has no attention, whose projections have low-rank updates")
    layer.trainable = False
    for projection in projections:
        projection.trainable = True
        projection.enable_lora(rank)


def low_rank_layers(network: keras.Model) -> list[keras.layers.Dense]:
    """Returns the layers with low-rank updates, whose saved weights include the updates."""
    dense = (part for part in network._flatten_layers() if isinstance(part, keras.layers.Dense))
    return [layer for layer in dense if layer.lora_enabled]
