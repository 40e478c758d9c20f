"""Export of macaron_tf encoder-decoders as Hugging Face's T5, BART, MarianMT and Pegasus."""

import dataclasses
from typing import Any

import keras
import numpy as np

from macaron_tf.hub.arrays import Raw
from macaron_tf.hub.config import json_bytes
from macaron_tf.hub.encoder_decoders import STACKS, SequenceFamily
from macaron_tf.hub.families import families_of
from macaron_tf.hub.tokenizers.decoders import pad_with_start, sequence_tokenizer
from macaron_tf.hub.writing import (
    HuggingFaceFolder,
    config_fields,
    find_family,
    kept_rows,
    layer_state,
)
from macaron_tf.layers.positions import SinusoidalPositions
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.pretrained import Pretrained
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary
from macaron_tf.variables import spec_of

_MAX_NEW_TOKENS = 512  # maximum number of generated tokens, if the model has no limit


def sequence_folder(model: Pretrained) -> HuggingFaceFolder:
    """Converts an encoder-decoder to the files of a Hugging Face model.

    In MarianMT's sinusoidal positions, all sines precede the cosines. In macaron_tf's positions,
    sines and cosines alternate by default. The channels of all layers are then permuted, which
    changes no logit. MarianMT's decoder starts with the padding token, whose embedding must be
    zero; see `_shift_start_to_zero`.

    Raises:
        UserError: no Hugging Face model has counterparts for all parts and settings of the model,
            or Hugging Face's tokenizers have no counterpart for the vocabulary.
    """
    model.require_head()
    config = model.config
    family = find_family(
        families_of(SequenceFamily),
        _with_supported_values(config),
        lambda family: _unsupported_setting(family, config),
    )
    rows, special = kept_rows(model), model.special
    answer_start = _answer_start(model)
    pad_id = special.pad
    is_own = special.rows is None and family.starts_with_padding
    # Only these tokenizers can add MarianMT's padding after all pieces.
    pad_last = (
        is_own
        and family.appends_padding
        and isinstance(model.vocabulary, BytePairVocabulary | SentencePieceVocabulary | None)
    )
    if pad_last:
        rows = np.append(rows, special.begin)
        answer_start = (len(rows) - 1,)
    if is_own:  # the decoders of MarianMT and Pegasus start with padding
        pad_id = answer_start[0]
    token_ids = {
        "pad_token_id": pad_id,
        "bos_token_id": special.begin,
        "eos_token_id": special.end,
        "unk_token_id": special.unk,
        "decoder_start_token_id": answer_start[0],
        # BART's decoder starts with </s>, and its first output is forced to be <s>.
        "forced_bos_token_id": answer_start[1] if answer_start[1:] else None,
        "forced_eos_token_id": None,
    }
    fields = {
        **config_fields(family, config),
        **token_ids,
        "model_type": family.model_type,
        "architectures": [family.class_name],
        "vocab_size": len(rows),
        "dtype": "float32",
        "is_encoder_decoder": True,
    }
    fields = {
        name: value for name, value in fields.items() if value is not None or name in token_ids
    }
    default = {name: value for name, value in token_ids.items() if name != "unk_token_id"}
    default |= {
        "suppress_tokens": _suppressed_ids(model, {special.pad, pad_id, answer_start[0]}),
        "max_new_tokens": config.longest or _MAX_NEW_TOKENS,
    }
    files = {"generation_config.json": json_bytes(model.generation or default)}
    state = _state(model, family, rows)
    if pad_last:
        _shift_start_to_zero(state, config)
    tokenizer, notes = {}, ["the tokenizer is missing, because the model has no vocabulary"]
    if model.vocabulary:
        options = model.answers or model.ends
        sentinels = special.sentinels or range(model.vocabulary.pieces, len(rows))
        tokenizer, notes = (
            sequence_tokenizer(
                model.vocabulary,
                config.longest,
                starts=bool(options.get("starts") or options.get("source_start")),
                sentinels=sentinels if model.sentinels else (),
                pad_last=pad_last,
            ),
            [],
        )
        if is_own and not pad_last:
            tokenizer = pad_with_start(tokenizer)
        if family.starts_with_padding and "spiece.model" in tokenizer:
            # MarianMT's tokenizer reads two files, for source and target.
            model_file = tokenizer.pop("spiece.model")
            tokenizer |= dict.fromkeys(("source.spm", "target.spm"), model_file)
    return HuggingFaceFolder(
        config=fields,
        state=state,
        tokenizer=tokenizer,
        pipeline="translation" if model.decoding else "text2text-generation",
        files=files,
        notes=tuple(notes),
    )


def _with_supported_values(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Replaces the settings that `sequence_folder` itself converts by supported values, in a copy.

    These settings are `tied`, `logits_bias` and, with sinusoidal positions, `position_layout`.
    Otherwise, `find_family` would report the settings as unsupported.
    """
    changes: dict[str, Any] = {"tied": True, "logits_bias": False}
    if config.positions == "sinusoidal":
        changes["position_layout"] = "concatenated"
    return dataclasses.replace(config, **changes)


def _unsupported_setting(family: SequenceFamily, config: EncoderDecoderConfig) -> str:
    """Returns the setting of `config` that a family does not support, or "" if it supports all.

    The result is "logits_bias=True" or "tied=False".
    """
    if family.output_kernel:  # T5
        return "logits_bias=True" if config.logits_bias else ""
    return "" if config.tied else "tied=False"


def _answer_start(model: Pretrained) -> tuple[int, ...]:
    """Returns the ids that the decoder reads before an answer."""
    special, options = model.special, model.answers or model.ends
    if options.get("starts"):
        return special.end, special.begin
    return tuple(options.get("answer_start", ())) or (special.begin,)


def _shift_start_to_zero(state: dict[str, np.ndarray], config: EncoderDecoderConfig) -> None:
    """Shifts all token embeddings in `state` so that the last token's embedding is zero.

    CTranslate2 starts MarianMT's decoder with a zero embedding. The shift subtracts a constant
    vector c from all inputs of the encoder and the decoder. The biases of the first self-attention
    restore c: the biases of queries, keys and values increase by W c, and the output bias increases
    by c, because the residual connection lost c too. All logits of a position change by the same
    number, so the probabilities stay equal.
    """
    table = state["model.shared.weight"].astype("float64")
    shift = table[-1]  # (D,)
    state["model.shared.weight"] = (table - shift).astype("float32")
    shift = shift * np.sqrt(config.hidden_dim)  # the model scales embeddings by sqrt(D)
    for side in ("encoder", "decoder"):
        prefix = f"model.{side}.layers.0.self_attn."
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            addition = shift if part == "out_proj" else state[f"{prefix}{part}.weight"] @ shift
            name = f"{prefix}{part}.bias"
            state[name] = (state[name] + addition).astype("float32")


def _state(model: Pretrained, family: SequenceFamily, rows: np.ndarray) -> dict[str, np.ndarray]:
    network, config = model.network, model.config
    table = {
        **family.table,
        **(family.gated_table if config.gated else {}),
        "embedding/table": Raw(family.tokens[0], inverse=lambda table: table[rows]),
        "output_projection/kernel": Raw(
            family.output_kernel, inverse=lambda kernel: kernel.T[rows]
        ),
        "logits_bias": Raw("final_logits_bias", inverse=lambda bias: bias[rows][None]),
    }
    if "position_offset" in family.fixed_settings:
        offset = family.fixed_settings["position_offset"] - config.position_offset
        padding = ((offset, 0), (0, 0))
        for stack, embeddings in STACKS.items():
            table[f"{embeddings}/positions/table"] = Raw(
                f"{stack}.embed_positions.weight", inverse=lambda rows: np.pad(rows, padding)
            )
    state, width = {}, config.hidden_dim
    if family.saves_positions:
        zeros = np.zeros((1, config.max_length, width), "float32")
        sinusoids = keras.ops.convert_to_numpy(SinusoidalPositions("concatenated")(zeros)[0])
        names = (f"{side}.embed_positions.weight" for side in ("encoder", "decoder"))
        state |= dict.fromkeys(names, sinusoids)
    order = np.r_[0:width:2, 1:width:2]  # sines, then cosines

    def sines_first(variable: keras.Variable, array: np.ndarray) -> np.ndarray:
        if config.positions != "sinusoidal" or config.position_layout == "concatenated":
            return array
        axes = spec_of(variable).axes
        norm = axes == (None,) and len(array) == width
        for axis, name in enumerate(axes):
            if name == "embed" or norm:
                array = np.take(array, order, axis)
        return array

    state |= layer_state(network, table, convert=sines_first)
    heads = (family.output_kernel, "final_logits_bias")
    return {n if n in heads else family.prefix + n: array for n, array in state.items()}


def _suppressed_ids(model: Pretrained, ids: set[int]) -> list[int]:
    """Returns the ids of the tokens that generation must never produce.

    A translation model, or a model without a vocabulary, suppresses `ids` and BOS. Any other model
    suppresses all special tokens except EOS. The first token that BART's decoder generates is never
    suppressed.
    """
    special = model.special
    ids = ids | {special.begin}
    if model.vocabulary and (model.objective or model.answers):
        ids |= {*special.ids}
    return sorted(ids - {special.end, *_answer_start(model)[1:]})
