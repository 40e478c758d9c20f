"""A pre-training run's vocabulary as an encoder-decoder's pairs of lines are cut with it."""

from collections.abc import Iterable, Sequence

from macaron_tf.data.piece_vocabulary import PieceVocabulary
from macaron_tf.errors import UserError
from macaron_tf.special_ids import BOS, EOS

SOURCE, TARGET = "source", "target"


class TextVocabulary:
    """Lines to ids and back, what is too long being cut off.

    Args:
        vocabulary: whose [CLS] and [SEP] are BOS and EOS, as of all that are trained here.
        max_source, max_target: greatest number of ids of a line, EOS included.
        starts: whether the ids of a line begin with BOS, as BART's of Hugging Face.

    Attributes:
        languages: the names of the two sides, which stand where a translation has languages.

    Raises:
        UserError: the special ids are others.
    """

    languages = (SOURCE, TARGET)

    def __init__(
        self, vocabulary: PieceVocabulary, max_source: int, max_target: int, starts: bool = False
    ):
        check_ends(vocabulary)
        self.vocabulary = vocabulary
        self.limits = {SOURCE: max_source, TARGET: max_target}
        self.before = [BOS] if starts else []
        self.pieces, self.size, self.hash = vocabulary.pieces, vocabulary.size, vocabulary.hash

    def encode_lines(self, lines: Iterable[str], language: str = SOURCE) -> list[list[int]]:
        """Lines to ids, room being left for EOS.

        Args:
            lines: any number of lines.
            language: `"source"` or `"target"`.

        Returns:
            A list of ids for each line; none for a line without text.
        """
        room = self.limits[language] - 1
        rows = self.vocabulary.encode_lines(lines)
        return [[*self.before, *row][:room] if row else [] for row in rows]

    def decode_lines(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Ids to lines, see `PieceVocabulary.decode_lines`."""
        return self.vocabulary.decode_lines(rows)


def check_ends(vocabulary: PieceVocabulary) -> None:
    """Raises a UserError where [CLS] and [SEP] are not an encoder-decoder's BOS and EOS."""
    if (vocabulary.cls_id, vocabulary.sep_id) != (BOS, EOS):
        raise UserError(
            f"the vocabulary has [CLS] and [SEP] at ids {vocabulary.cls_id} and "
            f"{vocabulary.sep_id}, an encoder-decoder needs {BOS} and {EOS}: take a run whose "
            "vocabulary was trained here"
        )
