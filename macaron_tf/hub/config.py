"""Configuration files of other libraries, and the settings in them that several families share."""

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.io.paths import read_json, refuse_damage
from macaron_tf.models.catalog import CONFIGS
from macaron_tf.special import Special

# Fields of `config.json` that transformers reads as generation settings if the folder has no
# `generation_config.json`.
_GENERATION = re.compile(
    r"""(bos|eos|pad|decoder_start|forced_[be]os)_token_id | bad_words_ids | (max|min)_length
    | do_sample | num_beams | early_stopping | (length|repetition)_penalty | no_repeat_ngram_size
    | top_[kp] | temperature""",
    re.VERBOSE,
)
# Fields that do not change the answers of any model, unless its family reads them.
_WITHOUT_EFFECT = re.compile(
    r"""
    # Names and labels, switches of PyTorch and other frameworks, and text generation.
    _name_or_path | name | architectures | auto_map | model_type | macaron_tf | (torch_)?dtype
    | .*_version | torchscript | _?attn_implementation.* | _flash_attn_2_enabled | return_dict
    | output_(attentions|hidden_states) | use_(cache|bfloat16) | chunk_size_feed_forward
    | gradient_checkpointing | tokenizer_class | output_past | _?num_labels
    | (max|min)_new_tokens | prefix | finetuning_task | task_specific_params | problem_type
    | id2label | label2id | is_(decoder|encoder_decoder) | is_composition | adapters
    | xla_device | tf_legacy_loss | typical_p | num_beam_groups | num_return_sequences
    | tie_weights_ | reference_compile | deterministic_flash_attn
    # Ids and numbers of tokens, which belong to the vocabulary.
    | (cls|sep|mask)_token_id | (pad|unk|mask|bos|eos)_index | vocab_size | n_words | max_vocab
    | min_count | lang(uage|_id) | id2lang
    # Dropout and initial weights, other settings of training, and those of heads.
    | .*(drop|init).* | sparse_pred.* | repad_logits_with_grad | save_step | output_bias
    | (summary|pooler)_.* | (start|end)_n_top | directionality | predict_special_tokens
    # What the weights or other fields say, and numerical variants.
    | (down_scale|gap|net_structure|num_memory)_.* | num_hidden_layers | n_(ctx|positions) | d_head
    | extra_pos_embeddings | sinusoidal_.* | share_inout_emb | layer_norm_eps | sliding_window
    | position_embedding_type | max_window_layers | force_bos_token_to_be_generated
    | reorder_and_upcast_attn | pretraining_tp | reuse_len | use_mems_(eval|train)""",
    re.VERBOSE,
)
# Dict mapping the name of an activation in PyTorch models to its name in macaron_tf.
ACTIVATIONS = {
    "relu": "relu",
    "swish": "silu",
    "silu": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

_OF_WEIGHTS = "use the configuration that belongs to the weights"
# Dict mapping a type of RoPE scaling to the names of the values in the setting `rotary_scaling`.
ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
}


def json_bytes(value: Any) -> bytes:
    """Encodes a value as the contents of a JSON file."""
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


class ForeignConfig:
    """Settings of another library's model."""

    def __init__(self, fields: Mapping[str, Any], where: str):
        self.fields = fields
        self.where = where
        self.names_read: set[str] = set()

    @property
    def architecture(self) -> str:
        """Name of the model class in the other library, or "" if the file names no class."""
        with refuse_damage(self.where, "correct its fields architectures and id2label"):
            return str((self.get("architectures") or [""])[0])

    def generation(self, directory: pathlib.Path) -> dict[str, Any]:
        """Returns the generation settings of a Hugging Face model, with its ids."""
        file = directory / "generation_config.json"
        if not file.is_file():
            return {name: self.fields[name] for name in self.fields if _GENERATION.fullmatch(name)}
        # Without its marks, the file takes precedence over `config.json`.
        marks = ("_from_model_config", "transformers_version")
        return {name: value for name, value in read_json(file).items() if name not in marks}

    def get(self, field: str, default=None) -> Any:
        """Returns the value of a field, or `default` if the field is missing."""
        self.names_read.add(field)
        return self.fields.get(field, default)

    def refuse_unknown(self) -> None:
        """Raises a UserError that names the fields that nothing read, except those without effect.

        Empty values, such as `None` and False, count as switched off.
        """
        names = (name for name in self.fields if self.fields[name] and name not in self.names_read)
        kinds = (_GENERATION, _WITHOUT_EFFECT)
        unread = [name for name in names if not any(kind.fullmatch(name) for kind in kinds)]
        if unread:
            found = f"{self.where} has fields that macaron_tf does not know: {', '.join(unread)}"
            raise UserError(f"{found}: remove those that the model's answers do not depend on")

    def number(self, field: str, default: float | None = None, value_type: type = int) -> Any:
        """Returns the value of a field with a number or a bool, converted to the field's type.

        Args:
            default: value to return if the field is missing or null. The type of the field is the
                type of `default`. `None` means that the field is required.
            value_type: type of the field if `default` is `None`.
        """
        value_type = value_type if default is None else type(default)
        value = self._required(field, default)
        value = default if value is None else value
        # Not isinstance, because a bool is an int in Python.
        if type(value) not in (int, value_type):
            names = {int: "a whole number", float: "a number", bool: "true or false"}
            raise self.refusal(f"{field}={value!r}", names[value_type])
        return value_type(value)

    def choice(self, field: str, choices: Mapping[Any, Any], default: Any = None) -> Any:
        """Returns macaron_tf's counterpart of the value of a field, such as an activation.

        Args:
            choices: dict mapping each supported value to its counterpart in macaron_tf.
            default: value to translate if the field is missing; `None` means that the field is
                required.
        """
        name = self._required(field, default)
        if not isinstance(name, str | bool) or name not in choices:
            raise self.refusal(f"{field}={name!r}", ", ".join(map(str, choices)))
        return choices[name]

    def require(self, required: Mapping[str, Any]) -> None:
        """Raises a UserError if a field is there with another value than the one `required`."""
        self.names_read |= required.keys()
        for field, value in required.items():
            if self.fields.get(field, value) != value:
                raise self.refusal(f"{field}={self.fields[field]!r}", repr(value))

    def refusal(self, found: str, supported: str) -> UserError:
        """Returns the error for a value in the file."""
        only = f"but only {supported} can be used: give another model"
        return UserError(f"{self.where} has {found}, {only}")

    def _required(self, field: str, default) -> Any:
        self.names_read.add(field)
        if field not in self.fields and default is None:
            raise UserError(f"{self.where} lacks the field {field}: {_OF_WEIGHTS}")
        return self.fields.get(field, default)


def shortest_period(values: Sequence[int]) -> tuple[int, ...]:
    """Returns the shortest pattern whose repetition, truncated to `len(values)`, equals `values`.

    For example, the values (0, 128, 128, 0, 128) give (0, 128, 128). Without values, the result is
    (0,).
    """
    sizes = range(1, len(values) + 1)
    candidates = (tuple(values[:size]) for size in sizes)
    periods = (t for t in candidates if all(v == t[n % len(t)] for n, v in enumerate(values)))
    return next(periods, (0,))


def sizes(
    *defaults: int,
    fields: str = "hidden_size num_attention_heads num_hidden_layers intermediate_size "
    "max_position_embeddings",
) -> dict[str, tuple]:
    """Entries of `Family.settings` for the sizes of a model, from names of fields and defaults."""
    settings = ("hidden_dim", "num_heads", "num_layers", "feed_forward_dim", "max_length")
    entries = dict(zip(settings, zip(fields.split(), defaults, strict=True), strict=False))
    return {**entries, "initializer_range": ("initializer_range", 0.02)}


def parts_of(name: str) -> dict[str, Any]:
    """Returns the settings of a model in the catalog, for a family that replaces its sizes."""
    return {n: value for n, value in CONFIGS[name].keywords.items() if n != "vocab_size"}


def required(true: str = "", false: str = "", **fields: Any) -> dict[str, Any]:
    """The only supported values of fields: those that must be true, those false, and others."""
    return {**dict.fromkeys(true.split(), True), **dict.fromkeys(false.split(), False), **fields}


def rotary_settings(
    config: ForeignConfig, rope: Mapping[str, Any], field: str, default: float
) -> dict[str, Any]:
    """Reads RoPE's base and scaling, macaron_tf's settings `rotary_base` and `rotary_scaling`.

    Args:
        rope: value of the field `rope_parameters` or `rope_scaling` in `config`, or the part of
            this value for one type of layer. The dict is empty if `config` lacks the field.
        field: name of the field in `config` that contains the base if `rope` contains no base.
        default: base to use if neither `rope` nor `config` contains a base.
    """
    rope_type = rope.get("type", "default")  # the field's name in early versions
    fields = {field: config.get(field, default), "rope_type": rope_type, **rope}
    fields = ForeignConfig(fields, config.where)
    fields.require({"partial_rotary_factor": 1.0})
    base = fields.number("rope_theta" if "rope_theta" in rope else field, value_type=float)
    names = fields.choice("rope_type", ROPE_TYPES)
    scaling = tuple(fields.number(name, value_type=float) for name in names)
    return {"rotary_base": base, "rotary_scaling": scaling}


def rotary_fields(base: float, scaling: Sequence[float] = ()) -> dict[str, Any]:
    """Builds the value of Hugging Face's `rope_parameters` (the inverse of `rotary_settings`)."""
    rope_type, names = next(item for item in ROPE_TYPES.items() if len(item[1]) == len(scaling))
    values = dict(zip(names, scaling, strict=True))
    return {"rope_theta": base, "rope_type": rope_type, **values}


def id_tuple(field: Any) -> tuple[int, ...]:
    """Returns the ids in a field such as `eos_token_id`: an id, a list of ids, or `None`."""
    return () if field is None else tuple(map(int, np.atleast_1d(field)))


def ends_of(generation: Mapping[str, Any], special: Special) -> dict[str, tuple[int, ...]]:
    """Returns the argument `end_ids` of a `TextGenerator`, or an empty dict if [SEP] is the end."""
    end_ids = id_tuple(generation.get("eos_token_id"))
    return {"end_ids": end_ids} if {*end_ids} - {special.end} else {}
