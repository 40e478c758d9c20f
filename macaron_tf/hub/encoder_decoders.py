"""Rules for the encoder-decoders of another library, and the reader of their folders."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import Table, assign_weights, check_pieces, padded_rows, read_state
from macaron_tf.hub.config import ForeignConfig, ends_of, id_tuple
from macaron_tf.hub.family import LANGUAGE_CLASSES, Family, ModelFolder, build_model, missing_head
from macaron_tf.hub.tokenizers.reading import refuse_lower_case
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.pretrained import Pretrained
from macaron_tf.special import Special
from macaron_tf.text import PieceVocabulary

_TOKENIZERS = ("spiece.model", "vocab.json", "tokenizer.json")
# Dict mapping a stack to its embeddings.
STACKS = {"encoder": "source_embeddings", "decoder": "target_embeddings"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceFamily(Family):
    """Conversion rules for one type of encoder-decoder, such as Hugging Face's "t5".

    Attributes:
        objective: pre-training objective, or `None`.
        class_name: name of the model class with its output layer.
        read_tokenizer: function that reads the tokenizer in a folder. `None` means that the
            tokenizer is not read. The tokenizer's files are optional.
        starts: whether sources begin with BOS, and the decoder starts with EOS.
        gated_table: mapping of weight names for gated feed-forward layers.
        starts_with_padding: whether the decoder starts with padding.
        appends_padding: whether a padding token after all others starts the decoder, whose
            embedding must be zero (see `_shift_start_to_zero`).
        saves_positions: whether a folder contains the sinusoidal positions.
    """

    objective: str | None = None
    class_name: str
    read_tokenizer: Callable[[pathlib.Path], PieceVocabulary] | None = None
    starts: bool = False
    gated_table: Table = dataclasses.field(default_factory=dict)
    starts_with_padding: bool = False
    appends_padding: bool = False
    saves_positions: bool = False

    def read(self, folder: ModelFolder) -> Pretrained:
        config = folder.config
        refuse_lower_case(folder.lower_case, folder.path)
        has_tokenizer = any((folder.path / name).is_file() for name in _TOKENIZERS)
        vocabulary: PieceVocabulary | None = folder.vocabulary
        if self.read_tokenizer and has_tokenizer and vocabulary is None:
            vocabulary = self.read_tokenizer(folder.path)
        generation = config.generation(folder.path)
        start = config.get("decoder_start_token_id")
        start = generation.get("decoder_start_token_id", start)
        if vocabulary and not self.starts and start is not None:
            vocabulary.special = dataclasses.replace(vocabulary.special, begin=start)
        model = import_model(read_state(folder.path), self, config, vocabulary)
        special = model.special
        ends: dict[str, tuple[int, ...]] = ends_of(generation, special)
        if self.starts and vocabulary and start != special.begin:
            # The encoder reads <s> text </s>, and the decoder starts with </s>, which most models
            # force <s> to follow.
            forced = id_tuple(generation.get("forced_bos_token_id"))
            ends |= {"source_start": (special.begin,), "answer_start": (start, *forced)}
        return dataclasses.replace(model, generation=generation, ends=ends)


def _special(config: ForeignConfig, rows: int) -> Special:
    """Returns the special tokens of a model whose tokenizer is not read."""
    pad, start = map(config.number, ("pad_token_id", "decoder_start_token_id"))
    end, *_ = id_tuple(config.get("eos_token_id")) or (config.number("eos_token_id"),)
    return Special(pad, config.get("unk_token_id"), start, end, rows=rows)


def import_model(
    state: Mapping[str, np.ndarray],
    family: SequenceFamily,
    config: ForeignConfig,
    vocabulary: PieceVocabulary | None = None,
) -> Pretrained:
    """Builds a macaron_tf model from another library's weights and settings.

    Args:
        state: dict mapping PyTorch name to weight.
        family: conversion rules for the model.
        config: settings to convert.
        vocabulary: vocabulary of the model, or `None` if the model was read without one.
    """
    arrays, missing = family.arrays(state), ""
    settings, tokens = family.read_settings(config), arrays.array(*family.tokens)
    special, size = _special(config, len(tokens)), len(tokens)
    if vocabulary:
        check_pieces(vocabulary, tokens)
        special, size = vocabulary.special, vocabulary.size
    # Rows without a token are copies of the padding, whose probability is almost 0.
    pad = padded_rows(size, fill_row=special.pad)
    tokens = pad(tokens)
    for part in family.body_prefixes:
        if not any(name.startswith(part) for name in arrays.arrays):
            raise UserError(
                f"the weights of the {config.architecture or family.name} have no {part[:-1]}, but "
                "only an encoder and its decoder can be read: give another model"
            )
    table = {**family.table, "embedding/table": tokens}
    if settings.get("gated"):
        table |= family.gated_table
    if family.output_kernel:
        has_output = arrays.has(family.output_kernel)
        output = pad(arrays.array(family.output_kernel)) if has_output else tokens
        # A T5 1.1 without its output matrix may be saved with tie_word_embeddings=True.
        tied = settings["scaled_logits"] or config.architecture.endswith(LANGUAGE_CLASSES)
        if not has_output and not (tied and config.get("tie_word_embeddings", True)):
            missing = family.output_kernel
        settings["tied"] = np.array_equal(output, tokens)
        table["output_projection/kernel"] = output.T
    else:
        bias = np.ravel(arrays.arrays.get("final_logits_bias", 0.0))
        settings["logits_bias"] = bool(np.any(bias))
        if settings["logits_bias"]:
            table["logits_bias"] = pad(bias)
    ids = {"pad_id": special.pad, "begin_id": special.begin, "end_id": special.end}
    network = build_model(EncoderDecoder, {"vocab_size": size, **ids, **settings})
    assign_weights(network, arrays, table)
    # The output matrix may differ from the token embeddings.
    unread = dataclasses.replace(family, output_kernel="").check_unread(arrays)
    fields = {"missing_head": missing_head(config, unread) or missing, "unread": unread}
    fields["sentinels"] = len(special.sentinels)
    return Pretrained(network, family.catalog, family.objective, vocabulary, special, **fields)
