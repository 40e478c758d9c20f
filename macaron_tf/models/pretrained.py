"""A network with its weights and its vocabulary, from wherever they come."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.layers.heads import Pooler
from macaron_tf.layers.language_heads import ReplacedTokenHead
from macaron_tf.models import catalog
from macaron_tf.models.config import differing_fields
from macaron_tf.models.tasks import EncoderClassifier
from macaron_tf.text import PieceVocabulary


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
    """A pre-trained network.

    Attributes:
        network: of a run, as it was trained; of another library's model, ours with the same
            outputs: of encoders a `PretrainingEncoder`, with its head `sentence_pair` where the
            weights hold it and a pooler.
        model: name of its kind in the catalog.
        objective: what it has learnt, as pre-training names it; None = something else.
        vocabulary: cuts text into the network's ids; None where the tokenizer is missing or has
            no counterpart here.
        ids: `(V',)` int, their id for each of ours, -1 for none; None where all are equal.
        unread: names of weights, of other heads, that were left behind.
        pooler: of an encoder, over [CLS]; None where there is none.
        replaced_token: an ELECTRA discriminator's head, `(B, L, D) -> (B, L)` logits, or None.
        has_masked_language: whether the head over masked tokens was read; else it is as drawn.
        starts: whether a language model begins texts, behind [CLS].
        sentinels: of an encoder-decoder, how many ids behind the vocabulary's are T5's sentinels.
        ends: of an encoder-decoder, arguments of `SequenceGenerator`: how its texts begin, where
            that differs from models that are trained here.
        answers: of an encoder-decoder that was fine-tuned: the task whose lines it answers, their
            limits and how they begin.
        pooling, normalize, max_length: of a sentence encoder: `"cls"`, `"mean"` or `"max"`, [CLS]
            and [SEP] included; whether vectors get length 1; longest row, beyond which text is cut.
        name: short, for tables. checkpoint: whose weights.
        optimizer, trained_length, languages: of a run: its optimizer, its longest rows, and whose
            the language embeddings are, in order.
    """

    network: keras.Model
    model: str = ""
    objective: str | None = None
    vocabulary: PieceVocabulary | None = None
    ids: np.ndarray | None = None
    unread: tuple[str, ...] = ()
    pooler: Pooler | None = None
    replaced_token: ReplacedTokenHead | None = None
    has_masked_language: bool = False
    starts: bool = True
    sentinels: int = 0
    ends: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    answers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pooling: str | None = None
    normalize: bool = False
    max_length: int | None = None
    name: str = ""
    checkpoint: str = ""
    optimizer: str | None = None
    trained_length: int | None = None
    languages: tuple[str, ...] = ()

    @property
    def config(self):
        """The network's configuration."""
        return self.network.config

    @property
    def model_options(self) -> tuple[tuple[str, Any], ...]:
        """Fields of the configuration that differ from the catalog's `model`, with their values."""
        known = catalog.config(self.model, vocab_size=self.config.vocab_size)
        return tuple(sorted(differing_fields(self.config, known).items()))

    def classifier(
        self, num_classes: int, head_dropout: float = 0.1, **changes
    ) -> EncoderClassifier:
        """A classifier on this encoder and pooler, its last layer as drawn.

        Args:
            num_classes: C; 1 for regression.
            head_dropout: on the pooled vector, 0 to 1.
            changes: fields of the `EncoderConfig` that are no shapes, such as `dropout`.
        """
        config = dataclasses.replace(self.config, **changes)
        if config.scheme != self.config.scheme:
            raise UserError(
                f"scheme={config.scheme!r}: the weights were trained with {self.config.scheme!r}"
            )
        classifier = EncoderClassifier(config, num_classes, head_dropout)
        classifier.build()
        classifier.encoder.set_weights(self.network.encoder.get_weights())
        if self.pooler:
            classifier.pooler.set_weights(self.pooler.get_weights())
        return classifier
