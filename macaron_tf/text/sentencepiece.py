"""SentencePiece vocabularies, and their training."""

import dataclasses
import functools
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Self

import sentencepiece
import tensorflow as tf
import tensorflow_text
from sentencepiece import sentencepiece_model_pb2

from macaron_tf.errors import UserError
from macaron_tf.io.paths import refuse_damage
from macaron_tf.special import SPECIAL, Special
from macaron_tf.text.base import NO_TEXT, PieceVocabulary, reports, too_large, too_small
from macaron_tf.text.normalization import (
    NormalizationConfig,
    in_chunks,
    map_lines,
    normalize,
    normalize_lines,
)
from macaron_tf.text.token_rows import TokenRows

CONTROL = ("[CLS]", "[SEP]", "[MASK]")
WORD_START = "\u2581"
# A constant instead of the number of cores: SentencePiece writes the number into the model, and the
# model's hash must be the same on all machines.
_THREADS = 4
# Names of SentencePiece's built-in normalization rules. A trained model contains the name of its
# rule.
NormalizationRule = Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"]


@dataclasses.dataclass(eq=False, repr=False)
class SentencePieceVocabulary(PieceVocabulary):
    """SentencePiece vocabulary with an optional text normalization.

    The first ids are PAD, UNK, [CLS], [SEP] and [MASK] in a vocabulary for encoders. In other
    vocabularies, such as for translation, the first ids are PAD, UNK, BOS and EOS.

    Args:
        proto: serialized SentencePiece model.
        normalization: additional normalization before the SentencePiece model's own normalization.
        languages: language codes of the lines, which select the punctuation rules.
        fold_accents: whether to strip accents and replace LaTeX quotation marks by `"` before the
            normalization, as ALBERT does.
        verbatim: whether to leave line ends, control characters and outer spaces to the
            SentencePiece model, as Llama does. Of `normalization`, only `lower_case` has an effect.
        shares_space: whether a space at the start of a line is the space that SentencePiece adds
            there, as in Hugging Face's Metaspace. Used only with `verbatim`.
        spaces: pattern of the characters that become spaces, as Hugging Face's WhitespaceSplit
            reads them. Used only with `verbatim`.
        special: ids of the special tokens in a model from another library. `None` means a model
            that is trained here.
    """

    kind = "sentencepiece"
    contents_name = "vocabulary.model"
    leading_space = "^ +"

    proto: bytes
    normalization: NormalizationConfig = NormalizationConfig()
    languages: Sequence[str] = ("en",)
    fold_accents: bool = False
    pair_separators: int = 1
    cls_last: bool = False
    verbatim: bool = False
    shares_space: bool = False
    spaces: str = ""
    special: dataclasses.InitVar[Special | None] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, special: Special | None):
        self.proto, self.languages = bytes(self.proto), tuple(self.languages)
        self.processor = model = sentencepiece.SentencePieceProcessor()
        with refuse_damage("the SentencePiece model of the vocabulary", "restore it from a copy"):
            model.LoadFromSerializedProto(self.proto)
        controls = [n for n in model.piece_to_id(list(CONTROL)) if model.is_control(n)]
        ids = [model.unk_id(), *(controls or (model.bos_id(), model.eos_id()))]
        if special is None and min(ids) < 0:
            raise UserError(f"the SentencePiece model lacks one of UNK, BOS and EOS (ids {ids})")
        self.pieces = model.get_piece_size()
        pad = model.pad_id() if model.pad_id() >= 0 else self.pieces
        self.special = special or Special(pad, *ids)
        self.byte_fallback = model.is_byte(model.piece_to_id("<0x00>"))
        self._tokenizer = None

    @classmethod
    @reports
    def train(
        cls,
        lines: Iterable[str | tuple[str, str]],
        size: int,
        *,
        masks: bool = True,
        special: Special = SPECIAL,
        normalization: NormalizationConfig | None = None,
        languages: Sequence[str] = ("en",),
        fold_accents: bool = False,
        model_type: str = "bpe",
        character_coverage: float = 0.9999,
        normalization_rule: NormalizationRule = "nmt_nfkc",
    ) -> Self:
        """Trains a vocabulary. The same lines always give the same vocabulary.

        Args:
            lines: lines in the first language, or (line, language) pairs, which `interleave` makes
                for a joint vocabulary.
            size: number of pieces, including the special pieces.
            masks: whether to add an encoder's special pieces ([CLS], [SEP] and [MASK]) instead of
                BOS and EOS.
            special: ids of PAD, UNK, BOS and EOS. With `masks`, the ids are the defaults.
            normalization, languages, fold_accents: see `SentencePieceVocabulary`.
            model_type: "bpe" or "unigram".
            character_coverage: share of all characters in the text that the pieces cover. The
                default leaves out the rarest 0.01%, because an encyclopedia contains thousands of
                characters that occur only once.
            normalization_rule: SentencePiece's normalization, applied after `normalization`.
                `nmt_nfkc` and `nfkc` replace compatibility characters, for example `m²` by `m2`.
                `nmt_nfkc` also replaces a zero-width non-joiner by a space. The rules that end in
                `_cf` also fold case. `identity` changes nothing.
        """
        normalization = normalization or NormalizationConfig()
        ids = {"bos_id": special.begin, "eos_id": special.end}
        if masks:
            ids = {"bos_id": -1, "eos_id": -1, "control_symbols": list(CONTROL)}
        proto = train_pieces(
            normalized_text(lines, normalization, languages, fold_accents),
            size,
            model_type=model_type,
            character_coverage=character_coverage,
            normalization_rule_name=normalization_rule,
            pad_id=special.pad,
            unk_id=special.unk,
            **ids,
        )
        return cls(proto, normalization, languages, fold_accents)

    def contents(self) -> bytes:
        return self.proto

    @functools.cached_property
    def model_type(self) -> str:
        """Training algorithm of the model: "bpe", "unigram", "word" or "char"."""
        model_types = sentencepiece_model_pb2.TrainerSpec.ModelType
        return model_types.Name(self._model.trainer_spec.model_type).lower()

    @property
    def normalization_rule(self) -> str:
        """Name of the normalization rule in the SentencePiece model, such as "nmt_nfkc"."""
        return self._model.normalizer_spec.name

    @property
    def _model(self) -> sentencepiece_model_pb2.ModelProto:
        return sentencepiece_model_pb2.ModelProto.FromString(self.proto)

    def normalized(self, strings: tf.Tensor, language: str | None = None) -> tf.Tensor:
        strings = _fold_accents(strings) if self.fold_accents else strings
        if self.verbatim:
            lines = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")
            if self.normalization.lower_case:  # as Hugging Face does, without a final sigma
                lines = tf.strings.regex_replace(lines, "Σ", "σ")  # noqa: RUF001
                # `lower` ends a text at U+0000.
                lines = tf.strings.regex_replace(lines, r"\x00", "\ufffd")
                lines = tf.strings.lower(lines, encoding="utf-8")
            if self.spaces:
                lines = tf.strings.regex_replace(lines, self.spaces, " ")
            pattern = f"^[ {WORD_START}]"
            return tf.strings.regex_replace(lines, pattern, "") if self.shares_space else lines
        return normalize(strings, self.normalization, language or self.languages[0])

    @property
    def tokenizer(self) -> tensorflow_text.SentencepieceTokenizer:
        """In-graph tokenizer, which is a `SentencepieceTokenizer` of tensorflow_text.

        tensorflow_text's `FastSentencepieceTokenizer` is 2.6 times as fast, but is unsuitable for
        two reasons. It treats a BPE model as a unigram model, so that only 0.04% of 58,000 lines
        got the right ids. Moreover, a SavedModel cannot track a `FastSentencepieceTokenizer`.
        """
        # Lifted out of the graph under construction, because later graphs use the resource too.
        with tf.init_scope():
            if self._tokenizer is not None:
                # TensorFlow deletes the resource when a seed is set
                # (`keras.utils.set_random_seed`).
                try:
                    self._tokenizer.tokenize([""])
                except tf.errors.NotFoundError:
                    self._tokenizer = None
            if self._tokenizer is None:
                self._tokenizer = tensorflow_text.SentencepieceTokenizer(
                    model=self.proto, out_type=tf.int32
                )
        return self._tokenizer

    def trackables(self) -> list:
        return [self.tokenizer]

    def encode_rows(self, lines: Iterable[str], language: str | None = None) -> TokenRows:
        """Encodes lines eagerly, in chunks, with the same result as `encode`.

        For a BPE model, the package sentencepiece is 1.4 times as fast as tensorflow_text. For a
        unigram model, sentencepiece is no faster, and may choose another one of several equally
        likely segmentations, such as "d dd" instead of "dd d". Therefore, this method uses
        sentencepiece only for BPE models without `added` tokens, and otherwise tensorflow_text.
        """
        if self.model_type != "bpe" or self.added:
            return super().encode_rows(lines, language)
        threads = int(os.environ.get("TF_NUM_INTRAOP_THREADS", 0)) or os.cpu_count() or 1
        chunks = in_chunks(self.normalized_lines(lines, language))
        id_lists = (self.processor.encode(chunk, num_threads=threads) for chunk in chunks)
        parts = [TokenRows.from_lists(part, self.size) for part in id_lists]
        return TokenRows.joined(parts, self.size)

    def piece_bytes(self, token_id: int) -> bytes:
        if self.processor.is_control(token_id) or self.processor.is_unused(token_id):
            return b""
        if self.processor.is_byte(token_id):
            return bytes([int(self.processor.id_to_piece(token_id)[1:-1], 16)])
        return self.processor.id_to_piece(token_id).replace(WORD_START, " ").encode()

    def starts_word(self, token_id: int) -> bool:
        return self.processor.id_to_piece(token_id).startswith(WORD_START)


def _fold_accents(strings: tf.Tensor) -> tf.Tensor:
    """Strips accents and replaces LaTeX quotation marks in strings `(B,)`, as ALBERT does."""
    lines = tf.strings.unicode_transcode(strings, "UTF-8", "UTF-8", errors="replace")
    lines = tf.strings.regex_replace(lines, "``|''", '"')
    return tf.strings.regex_replace(tensorflow_text.normalize_utf8(lines, "NFKD"), r"\pM+", "")


def train_pieces(lines: Iterable[str], size: int, **options) -> bytes:
    """Trains a serialized SentencePiece model. The same lines always give the same model.

    `lines` are normalized, and none is empty. `size` includes the special pieces. `options` are
    further arguments of the trainer.
    """
    model = io.BytesIO()
    failures: list[BaseException] = []

    def read() -> Iterator[str]:
        try:
            yield from lines
        except BaseException as error:  # the trainer would take it for the end of the lines
            failures.append(error)

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=read(),
            model_writer=model,
            vocab_size=size,
            # In bytes. SentencePiece skips longer lines silently; its default is 4192.
            max_sentence_length=1 << 20,
            num_threads=_THREADS,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        if failures:
            raise failures[0] from None
        message = str(error)
        if maximum := re.search(r"too high.*<= (\d+)", message):
            raise too_large(size, maximum[1]) from error
        if minimum := re.search(r"required_chars\. \d+ vs (\d+)", message):
            remedy = ", or give other text"
            raise too_small(size, "the text's characters", minimum[1], remedy) from error
        if "sentences_.empty()" in message:
            raise UserError(NO_TEXT) from error
        raise UserError(f"SentencePiece cannot train the vocabulary: {message.strip()}") from error
    if failures:
        raise failures[0]
    return model.getvalue()


def interleave(
    pairs: Iterable[tuple[str, str]], languages: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yields sentence pairs as (line, language) pairs, to train a joint vocabulary."""
    for source, target in pairs:
        yield source, languages[0]
        yield target, languages[1]


def normalized_text(
    lines: Iterable[str | tuple[str, str]],
    config: NormalizationConfig,
    languages: Sequence[str],
    fold_accents: bool = False,
) -> Iterator[str]:
    """Yields normalized training lines, in chunks whose lines are grouped by language.

    `lines` are lines in the first language, or (line, language) pairs. Empty lines, at which
    SentencePiece fails, are left out.
    """
    for chunk in in_chunks(lines):
        by_language: dict[str, list[str]] = {}
        for item in chunk:
            line, language = (item, languages[0]) if isinstance(item, str) else item
            by_language.setdefault(language, []).append(line)
        for language, group in by_language.items():
            if fold_accents:
                group = list(map_lines(_fold_accents, group))
            yield from filter(None, normalize_lines(group, config, language))
