"""One call of SentencePiece's trainer for the vocabularies of encoders."""

import io
from collections.abc import Iterable

import sentencepiece

from macaron_tf.data.sentencepiece_training import _THREADS, _readable


def train_pieces(lines: Iterable[str], size: int, **options) -> bytes:
    """Trains a model; the same lines give the same bytes.

    Args:
        lines: lines of text, none empty.
        size: number of pieces, special ones included.
        options: further options of SentencePiece's trainer.

    Returns:
        The serialized model.

    Raises:
        UserError: no text, too little of it for `size` pieces, or too much.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=size,
            # SentencePiece leaves longer lines out without a word; its own default is 4192.
            max_sentence_length=1 << 20,
            num_threads=_THREADS,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        raise _readable(str(error), size) from error
    return model.getvalue()
