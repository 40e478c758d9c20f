"""A BERT read from another library's files: model, vocabulary and pooler."""

import dataclasses

from macaron_tf.data.wordpiece import WordPieceVocabulary
from macaron_tf.errors import UserError
from macaron_tf.interop.assign import assign_dense
from macaron_tf.interop.bert_weights import BertWeights, Dense, assign_bert
from macaron_tf.models.classifier import EncoderClassifier
from macaron_tf.models.encoder_config import EncoderConfig
from macaron_tf.models.pretraining import PretrainingEncoder


@dataclasses.dataclass(frozen=True)
class BertImport:
    """What was read, and what was not.

    Attributes:
        model: gives the same outputs; with `next_sentence` where a pooler and that head were there.
        vocabulary: cuts text into the model's ids.
        pooler: `(kernel (D, D), bias (D,))`, or None where there was none.
        has_masked_language: whether the head over masked tokens was read; else it is as at the
            start of a training.
        unread: names of weights of other heads, such as a classifier's, that were left behind.
    """

    model: PretrainingEncoder
    vocabulary: WordPieceVocabulary
    pooler: Dense | None
    has_masked_language: bool
    unread: tuple[str, ...] = ()

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


def import_bert(
    settings: dict,
    weights: BertWeights,
    vocabulary: WordPieceVocabulary,
    unread: tuple[str, ...] = (),
) -> BertImport:
    """Makes our model of another library's weights.

    Args:
        settings: fields of the `EncoderConfig` but for `vocab_size`, which is the vocabulary's:
            the model's rows beyond it are left out, for no text can reach them.
        weights: of a BERT.
        vocabulary: its own.
        unread: names of what the weights leave out.

    Raises:
        UserError: a setting has no place in our model, a shape differs, or the vocabulary has more
            pieces than the model.
    """
    rows = len(weights.tokens)
    if rows < vocabulary.pieces:
        raise UserError(
            f"the vocabulary has {vocabulary.pieces} pieces and the model embeds only {rows}: it "
            "is another model's vocabulary."
        )
    kept = slice(vocabulary.size)
    weights = dataclasses.replace(weights, tokens=weights.tokens[kept])
    if weights.masked_language:
        head = weights.masked_language
        head = dataclasses.replace(head, bias=head.bias[kept])
        weights = dataclasses.replace(weights, masked_language=head)
    try:
        config = EncoderConfig(vocab_size=vocabulary.size, **settings)
    except ValueError as error:
        raise UserError(f"the model's settings do not fit ours: {error}.") from None
    has_next_sentence = weights.pooler is not None and weights.next_sentence is not None
    head_options = weights.masked_language.options if weights.masked_language else None
    model = PretrainingEncoder(config, has_next_sentence, head_options)
    assign_bert(model, weights)
    return BertImport(
        model, vocabulary, weights.pooler, weights.masked_language is not None, unread
    )
