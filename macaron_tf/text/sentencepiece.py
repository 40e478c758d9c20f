"""SentencePiece inside a graph."""

import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import sentencepiece
import tensorflow as tf
import tensorflow_text

from macaron_tf.errors import UserError
from macaron_tf.text.normalization import NormalizationConfig, in_chunks, normalize_lines


def living_tokenizer(
    tokenizer: tensorflow_text.SentencepieceTokenizer | None, proto: bytes
) -> tensorflow_text.SentencepieceTokenizer:
    """The tokenizer of a model: the one given, or a new one where TensorFlow has dropped it.

    Its resource belongs to the kernel that made it, which TensorFlow lets go of whenever a seed is
    set (`keras.utils.set_random_seed`).

    Args:
        tokenizer: made earlier; None at the first time.
        proto: the model's bytes.
    """
    # A graph may be under construction: the resource has to outlive it.
    with tf.init_scope():
        if tokenizer is not None:
            try:
                tokenizer.tokenize([""])
                return tokenizer
            except tf.errors.NotFoundError:
                pass
        return tensorflow_text.SentencepieceTokenizer(model=proto, out_type=tf.int32)


# Recorded in the model's bytes, hence in the hash: a constant, not the machine's number of cores.
_THREADS = 4


def train_pieces(lines: Iterable[str], size: int, **options) -> bytes:
    """Trains a SentencePiece model; the same lines give the same bytes.

    Args:
        lines: normalized lines, none empty.
        size: number of pieces, special ones included.
        options: further ones of SentencePiece's trainer: `model_type` ("bpe" or "unigram"),
            `character_coverage`, `normalization_rule_name` ("nmt_nfkc", "nfkc" or "identity"), the
            numbers of the special pieces and the rest.

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


def interleave(
    pairs: Iterable[tuple[str, str]], languages: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """The training text of a joint vocabulary: both sides of each pair, each with its language.

    Args:
        pairs: (source, target) lines.
        languages: the source and the target language.

    Yields:
        (line, language), the source first.
    """
    for source, target in pairs:
        yield source, languages[0]
        yield target, languages[1]


def normalized_text(
    lines: Iterable[str | tuple[str, str]],
    config: NormalizationConfig,
    languages: Sequence[str],
    max_lines: int,
) -> Iterator[str]:
    """Normalizes a feed chunk by chunk; within a chunk, language by language.

    Args:
        lines: lines of the first language, or (line, language) pairs.
        config: what is done.
        languages: the languages.
        max_lines: where to stop.

    Yields:
        Normalized lines, none empty: SentencePiece takes an empty one for an error in its feed.
    """
    for chunk in in_chunks(itertools.islice(lines, max_lines)):
        by_language: dict[str, list[str]] = {}
        for item in chunk:
            line, language = (item, languages[0]) if isinstance(item, str) else item
            by_language.setdefault(language, []).append(line)
        for language, group in by_language.items():
            yield from filter(None, normalize_lines(group, config, language))


def _readable(message: str, size: int) -> UserError:
    """SentencePiece's internal error as a sentence that names the mend."""
    most = re.search(r"too high.*<= (\d+)", message)
    if most:
        return UserError(
            f"a vocabulary of {size} pieces is too large for this text: it gives at most "
            f"{most.group(1)}; ask for {most.group(1)} or fewer, or bring more text"
        )
    least = re.search(r"required_chars\. \d+ vs (\d+)", message)
    if least:
        return UserError(
            f"a vocabulary of {size} pieces is too small: the text's characters alone need "
            f"{least.group(1)}; ask for more pieces or lower the character coverage"
        )
    if "sentences_.empty()" in message:
        return UserError("no text to train a vocabulary on: every line is empty")
    return UserError(f"the vocabulary could not be trained: {message.strip()}")
