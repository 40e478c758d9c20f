"""Converts our encoder-decoders to Hugging Face's T5, BART, MarianMT and Pegasus."""

import dataclasses
from typing import Any

import keras
import numpy as np

from macaron_tf.interop.arrays import Family, Raw, json_bytes
from macaron_tf.interop.decoder_tokenizers import padded_with_start, sequence_tokenizer
from macaron_tf.interop.encoder_decoders import FAMILIES, t5_table
from macaron_tf.interop.writing import (
    HuggingFaceFolder,
    fitting,
    layer_state,
    their_rows,
    written_settings,
)
from macaron_tf.layers.positions import SinusoidalPositions
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.pretrained import Pretrained
from macaron_tf.special_ids import BOS, EOS, PAD, UNK
from macaron_tf.text.byte_pairs import BytePairVocabulary
from macaron_tf.text.sentencepiece import SentencePieceVocabulary
from macaron_tf.variables import spec_of

_CLASSES = {
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "marian": "MarianMTModel",
    "pegasus": "PegasusForConditionalGeneration",
}
_LENGTH = 512  # most tokens of an answer, if the model has no limit


def sequence_folder(model: Pretrained) -> HuggingFaceFolder:
    """Converts an encoder-decoder to the files of a Hugging Face model.

    MarianMT's sinusoidal positions have all sines before the cosines, but ours alternate them. The
    channels of every layer's inputs and outputs are therefore permuted, which changes no score. The
    answers of a MarianMT begin with padding, the last piece, whose embedding is zeros; see
    `_from_zeros`.

    Raises:
        UserError: none of the families has a counterpart of some part or setting.
    """
    config = model.config
    names = {family.name: name for name, family in FAMILIES.items()}
    family = fitting([*FAMILIES.values()], _plain(config), lambda family: _lacks(family, config))
    kind = names[family.name]
    ids = _their_ids(model)
    if kind == "marian" and model.ids is None:
        ids = _marian_ids(model, ids)
    start = tuple(int(ids[number]) for number in model.ends.get("answer_start", (BOS,)))
    numbers = {
        "pad_token_id": int(ids[PAD]),
        "bos_token_id": int(ids[BOS]),
        "eos_token_id": int(ids[EOS]),
        "unk_token_id": int(ids[UNK]),
        "decoder_start_token_id": start[0],
        # BART's decoder starts with </s>, and its first output is forced to be <s>.
        "forced_bos_token_id": start[1] if start[1:] else None,
        "forced_eos_token_id": None,
    }
    if kind in ("marian", "pegasus") and model.ids is None:
        # Their decoders begin with padding, so that our BOS becomes the padding.
        numbers["pad_token_id"] = start[0]
    fields = {
        **written_settings(family, config),
        **numbers,
        "model_type": kind,
        "architectures": [_CLASSES[kind]],
        "vocab_size": int(ids.max()) + 1,
        "dtype": "float32",
        "is_encoder_decoder": True,
    }
    fields = {name: value for name, value in fields.items() if value is not None or name in numbers}
    generation = {name: value for name, value in numbers.items() if name != "unk_token_id"}
    generation |= {
        "suppress_tokens": _barred(model, ids),
        "max_new_tokens": config.longest or _LENGTH,
    }
    files = {"generation_config.json": json_bytes(generation)}
    state = _state(model, family, ids)
    if kind == "marian":
        _from_zeros(state, start[0], config)
    tokenizer, notes = {}, ["there is no tokenizer: the model has no vocabulary"]
    if model.vocabulary:
        tokenizer, notes = _tokenizer(model, ids), []
        if numbers["pad_token_id"] == numbers["bos_token_id"]:
            tokenizer = padded_with_start(tokenizer)
        if kind in ("marian", "pegasus") and "spiece.model" in tokenizer:
            # The names of the files of MarianMT's tokenizer.
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


def _plain(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Returns the settings with defaults for those that `sequence_folder` converts itself.

    The checks of the other library's format would report them as unsupported.
    """
    changes: dict[str, Any] = {"tied": True, "logits_bias": False}
    if config.positions == "sinusoidal":
        changes["position_layout"] = "concatenated"
    return dataclasses.replace(config, **changes)


def _lacks(family: Family, config: EncoderDecoderConfig) -> str:
    """Names a part of the model that a family lacks, in the form for `fitting`; "": none."""
    if family is FAMILIES["t5"]:
        return "logits_bias=True" if config.logits_bias else ""
    return "" if config.tied else "tied=False"


def _their_ids(model: Pretrained) -> np.ndarray:
    """Returns the foreign id for each row of our table, pieces then sentinels; -1: none.

    In a model that was read, rows without a token have the padding's id; here they get -1.
    """
    vocabulary, size = model.vocabulary, model.config.vocab_size
    if model.ids is not None:
        ids = np.array(model.ids)
        ids[[n for n in np.flatnonzero(ids == ids[PAD]) if n not in (PAD, BOS)]] = -1
        return ids
    ids = np.arange(size)
    if vocabulary:
        ids[vocabulary.pieces :] = -1
        first = vocabulary.size
        ids[first : first + model.sentinels] = vocabulary.pieces + np.arange(model.sentinels)
    return ids


def _marian_ids(model: Pretrained, ids: np.ndarray) -> np.ndarray:
    """Returns ids in MarianMT's order: EOS, UNK, the pieces, then padding, which begins answers.

    The order matters to CTranslate2, which drops the last piece if its name is <pad>.
    """
    if not isinstance(model.vocabulary, BytePairVocabulary | SentencePieceVocabulary | None):
        return ids  # the special pieces of other kinds have other names
    special = [PAD, UNK, BOS, EOS]
    rest = np.setdiff1d(np.flatnonzero(ids >= 0), special)
    last = len(rest) + 2
    found = np.full_like(ids, -1)
    found[rest] = 2 + np.arange(len(rest))
    found[special] = last, 1, last, 0
    return found


def _from_zeros(state: dict[str, np.ndarray], start: int, config: EncoderDecoderConfig) -> None:
    """Shifts all embeddings so that the one that begins an answer is zeros.

    CTranslate2 begins the answers of a MarianMT with zeros. The shift subtracts a constant c from
    all inputs of both stacks. Their first attention adds it back: W c to the biases of queries,
    keys and values, and c to the bias of the output, because the residual lost it too. All scores
    of a position change by the same number, so that no probability changes.
    """
    table = state["model.shared.weight"].astype("float64")
    lost = table[start]  # (D,)
    state["model.shared.weight"] = (table - lost).astype("float32")
    lost = lost * np.sqrt(config.hidden_dim)  # embeddings are scaled
    for side in ("encoder", "decoder"):
        prefix = f"model.{side}.layers.0.self_attn."
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            added = lost if part == "out_proj" else state[f"{prefix}{part}.weight"] @ lost
            name = f"{prefix}{part}.bias"
            state[name] = (state[name] + added).astype("float32")


def _state(model: Pretrained, family: Family, ids: np.ndarray) -> dict[str, np.ndarray]:
    network, config, placed = model.network, model.config, their_rows(ids)
    table = {
        **(t5_table(config.gated) if family is FAMILIES["t5"] else family.table),
        "embedding/table": Raw(family.tokens[0], inverse=placed),
        "output_projection/kernel": Raw(family.output, inverse=lambda kernel: placed(kernel.T)),
        "logits_bias": Raw("final_logits_bias", inverse=lambda bias: placed(bias)[None]),
    }
    state, width = {}, config.hidden_dim
    if family is FAMILIES["pegasus"]:  # its files include the sinusoids, which others compute
        zeros = np.zeros((1, config.max_length, width), "float32")
        sinusoids = keras.ops.convert_to_numpy(SinusoidalPositions("concatenated")(zeros)[0])
        names = (f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder"))
        state |= dict.fromkeys(names, sinusoids)
    if config.positions != "sinusoidal" or config.position_layout == "concatenated":
        return {**state, **layer_state(network, table)}
    order = np.r_[0:width:2, 1:width:2]  # sines, then cosines

    def sines_first(variable: keras.Variable, array: np.ndarray) -> np.ndarray:
        axes = spec_of(variable).axes
        norm = axes == (None,) and len(array) == width
        for axis, name in enumerate(axes):
            if name == "embed" or norm:
                array = np.take(array, order, axis)
        return array

    return {**state, **layer_state(network, table, changed=sines_first)}


def _barred(model: Pretrained, ids: np.ndarray) -> list[int]:
    """Returns the foreign ids that generation excludes: PAD, BOS and other special pieces.

    For a translator they are only PAD and BOS.
    """
    special = {PAD, BOS}
    if model.vocabulary and (model.objective or model.answers):
        special |= {*model.vocabulary.special_ids}
    return sorted({int(ids[number]) for number in special - {EOS}} - {-1, int(ids[EOS])})


def _tokenizer(model: Pretrained, ids: np.ndarray) -> dict[str, bytes]:
    vocabulary = model.vocabulary
    first = vocabulary.size
    return sequence_tokenizer(
        vocabulary,
        ids[: vocabulary.pieces],
        model.config.longest,
        starts=bool(model.ends.get("source_start")),
        sentinels=ids[first : first + model.sentinels],
    )
