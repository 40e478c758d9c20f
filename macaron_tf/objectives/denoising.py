"""BART's objective: the whole text, from what noise has left of it."""

import dataclasses

import numpy as np
import tensorflow as tf

from macaron_tf.errors import UserError
from macaron_tf.objectives import draws
from macaron_tf.objectives.corruption import (
    Corruption,
    CorruptionObjective,
    CorruptionVocabulary,
    ended,
)
from macaron_tf.objectives.infilling import infill
from macaron_tf.objectives.text_noise import (
    delete_tokens,
    replace_tokens,
    rotate,
    shuffle_sentences,
)
from macaron_tf.special_ids import PAD


@dataclasses.dataclass(frozen=True)
class DenoisingConfig:
    """How much of each noise; the defaults are those that BART was trained with.

    Args:
        infilling: part of the words that spans of them take away, each behind one mask.
        mean_span: words of a span on average, by Poisson's law.
        shuffling: part of the texts whose sentences are put in random order.
        rotation: part of the texts that begin at a random token.
        masking, deletion: part of the tokens, one by one, that give way to a mask or to nothing.

    Raises:
        UserError: a field is out of its range; the sentence names the field.

    References: Lewis et al. 2020 (BART), section 2.2 and figure 2.
    """

    infilling: float = 0.3
    mean_span: float = 3.0
    shuffling: float = 1.0
    rotation: float = 0.0
    masking: float = 0.0
    deletion: float = 0.0

    def __post_init__(self):
        shares = ("infilling", "shuffling", "rotation", "masking", "deletion")
        for name in shares:
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= 1:
                raise UserError(f"denoising: {name} must be a number from 0 to 1, not {value!r}")
        if not any(getattr(self, name) for name in shares):
            raise UserError(
                f"denoising: one of {', '.join(shares)} must be above 0, or there is no noise"
            )
        if type(self.mean_span) not in (int, float) or not 0 < self.mean_span <= 50:
            raise UserError(
                f"denoising: mean_span must be above 0 and at most 50, not {self.mean_span!r}"
            )


@dataclasses.dataclass(frozen=True)
class DenoisingObjective(CorruptionObjective):
    """BART's: the source is the noised text, the target the text.

    Sentences and texts are moved first, then tokens masked and deleted, and last are spans filled
    in. Sentences end with full stops, words where the vocabulary says.

    Attributes: that of `CorruptionObjective`, and
        config: how much of each noise.

    References: Lewis et al. 2020 (BART), section 2.2.
    """

    config: DenoisingConfig = DenoisingConfig()

    def corruption(self, vocabulary: CorruptionVocabulary, length: int) -> Corruption:
        """See `CorruptionObjective`; S and T are both `length` + 1."""
        noise, mask_id = self.config, vocabulary.mask_id
        begins = np.array(vocabulary.word_starts(), bool)  # (V,)
        stops = np.zeros(begins.shape, bool)
        stops[full_stops(vocabulary)] = True

        def corrupted(text, seed):
            rows = tf.shape(text)[0]
            shuffling, rotation, which, masking, deletion, infilling = draws.split(seed, 6)
            moved = draws.uniform(which, rows, 2)  # (B, 2)
            noised = text
            if noise.shuffling:
                shuffled = shuffle_sentences(noised, tf.gather(stops, noised), shuffling)
                noised = tf.where(moved[:, :1] < noise.shuffling, shuffled, noised)
            if noise.rotation:
                noised = tf.where(moved[:, 1:] < noise.rotation, rotate(noised, rotation), noised)
            if noise.masking:
                noised = replace_tokens(noised, masking, noise.masking, mask_id)
            if noise.deletion:
                noised = delete_tokens(noised, deletion, noise.deletion)
            if noise.infilling:
                starts = tf.gather(begins, noised)
                noised = infill(
                    noised, starts, infilling, noise.infilling, noise.mean_span, mask_id
                )
            real = tf.reduce_any(text != PAD, axis=-1)  # (B,)
            return ended(noised, real, length + 1), ended(text, real, length + 1)

        return corrupted


def full_stops(vocabulary: CorruptionVocabulary) -> list[int]:
    """Ids of a full stop, alone and after a word."""
    rows = vocabulary.encode_lines([".", "a."])
    return sorted({row[-1] for row in rows if row} - set(vocabulary.special_ids))
