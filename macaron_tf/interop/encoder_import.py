"""An encoder read from another library's files: model, vocabulary and pooler."""

import dataclasses

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.assign import assign_dense
from macaron_tf.interop.encoder_weights import Dense, EncoderWeights, assign_encoder
from macaron_tf.layers.language_heads import ReplacedTokenHead
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.models.tasks import EncoderClassifier
from macaron_tf.text.loading import PieceVocabulary


@dataclasses.dataclass(frozen=True)
class EncoderImport:
    """What was read, and what was not.

    Attributes:
        model: gives the same outputs; with `sentence_pair` where a pooler and that head were there.
        vocabulary: cuts text into the model's ids; None where theirs has no counterpart of ours.
        pooler: `(kernel (D, D), bias (D,))`, or None where there was none.
        has_masked_language: whether the head over masked tokens was read; else it is as at the
            start of a training.
        unread: names of weights of other heads, such as a classifier's, that were left behind.
        ids: `(V',)` int, at each of our ids the one of theirs, for padding is 0 here; None where
            all are the same.
        replaced_token: an ELECTRA discriminator's head, `(B, L, D) -> (B, L)` logits, or None.
    """

    model: PretrainingEncoder
    vocabulary: PieceVocabulary | None
    pooler: Dense | None
    has_masked_language: bool
    unread: tuple[str, ...] = ()
    ids: np.ndarray | None = None
    replaced_token: ReplacedTokenHead | None = None

    def classifier(
        self, num_classes: int, head_dropout: float = 0.1, **changes
    ) -> EncoderClassifier:
        """A classifier on this encoder and pooler, with a new linear layer on top.

        Args:
            num_classes: C; 1 for regression.
            head_dropout: on the pooled vector, 0 to 1.
            changes: fields of the `EncoderConfig` that are no shapes, such as `dropout`.
        """
        config = dataclasses.replace(self.model.config, **changes)
        network = EncoderClassifier(config, num_classes, head_dropout)
        network.build()
        network.encoder.set_weights(self.model.encoder.get_weights())
        if self.pooler:
            assign_dense(network.pooler.dense, [self.pooler])
        return network


def import_encoder(
    settings: dict,
    weights: EncoderWeights,
    vocabulary: PieceVocabulary | None,
    unread: tuple[str, ...] = (),
    ids: np.ndarray | None = None,
) -> EncoderImport:
    """Makes our model of another library's weights.

    Args:
        settings: fields of the `EncoderConfig` but for `vocab_size`, which is the vocabulary's:
            the model's rows beyond it are left out, for no text can reach them.
        weights: of the encoder, their rows in the order of their ids.
        vocabulary: its own; None keeps all rows.
        unread: names of what the weights leave out.
        ids: at each of our ids the one of theirs, where they differ.

    Raises:
        UserError: a setting has no place in our model, a shape differs, or the vocabulary has more
            pieces than the model.
    """
    rows = len(weights.tokens)
    size = -(-rows // 8) * 8 if vocabulary is None else vocabulary.size
    if vocabulary is not None and rows < vocabulary.pieces:
        raise UserError(
            f"the vocabulary has {vocabulary.pieces} pieces and the model embeds only {rows}: it "
            "is another model's vocabulary."
        )
    kept = np.arange(min(rows, size)) if ids is None else ids
    if kept.max() >= rows:
        raise UserError(
            f"the vocabulary has ids up to {kept.max()} and the model embeds only {rows} pieces: "
            "it is another model's vocabulary."
        )
    weights = dataclasses.replace(weights, tokens=weights.tokens[kept])
    if weights.masked_language:
        head = weights.masked_language
        head = dataclasses.replace(head, bias=head.bias[kept])
        weights = dataclasses.replace(weights, masked_language=head)
    try:
        config = EncoderConfig(vocab_size=size, **settings)
    except ValueError as error:
        raise UserError(f"the model's settings do not fit ours: {error}.") from None
    has_sentence_pair = weights.pooler is not None and weights.sentence_pair is not None
    head_options = weights.masked_language.options if weights.masked_language else None
    model = PretrainingEncoder(config, has_sentence_pair, head_options)
    assign_encoder(model, weights)
    return EncoderImport(
        model,
        vocabulary,
        weights.pooler,
        weights.masked_language is not None,
        unread,
        ids,
        _replaced_token_head(config, weights.replaced_token) if weights.replaced_token else None,
    )


def _replaced_token_head(config: EncoderConfig, weights: tuple[Dense, Dense]) -> ReplacedTokenHead:
    head = ReplacedTokenHead(config.activation, config.initializer_range, name="replaced_token")
    head.build((None, None, config.hidden_dim))
    for layer, part in zip((head.dense, head.answer), weights, strict=True):
        assign_dense(layer, [part])
    return head
