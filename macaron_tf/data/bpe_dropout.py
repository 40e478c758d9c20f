"""BPE-dropout: a line is cut differently each time it is read."""

import concurrent.futures
from collections.abc import Iterable

import sentencepiece

from macaron_tf.data.normalization import in_chunks, normalize_lines
from macaron_tf.data.vocabulary import Vocabulary


def sample_lines(
    vocabulary: Vocabulary, lines: Iterable[str], dropout: float, seed: int, language: str
) -> list[list[int]]:
    """`Vocabulary.encode_lines` where every merge is left out with a probability.

    Provilkov et al. 2020, BPE-Dropout: Simple and Effective Subword Regularization, section 3.

    Args:
        vocabulary: a BPE vocabulary.
        lines: any number of lines.
        dropout: probability of leaving a merge out, in [0, 1].
        seed: the same seed gives the same ids.
        language: whose punctuation rules apply.

    Returns:
        A list of ids for each line.
    """
    encode = vocabulary.processor.encode

    def sample() -> list[list[int]]:
        return [
            encode(line, enable_sampling=True, alpha=dropout, nbest_size=-1)
            for chunk in in_chunks(lines)
            for line in normalize_lines(chunk, vocabulary.normalization, language)
        ]

    # SentencePiece seeds a thread's generator when the thread first draws: only a new thread
    # draws the same numbers again.
    sentencepiece.set_random_generator_seed(seed)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(sample).result()
