"""Conversion rules for `remote/modeling_macaron.py`, macaron_tf's networks in PyTorch.

If no model in transformers can express an encoder or a causal language model, the exported folder
includes this PyTorch file.
"""

import importlib.resources
from collections.abc import Callable
from typing import Any

from macaron_tf.hub.arrays import Raw, Table
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.layers.alibi import AlibiAttention
from macaron_tf.layers.attention import MultiHeadAttention
from macaron_tf.layers.feed_forward import FeedForward
from macaron_tf.layers.gated_mlp import GatedMLP
from macaron_tf.layers.mixer import Mixer
from macaron_tf.layers.rotary import RotaryAttention
from macaron_tf.layers.swish_rnn import SwishRNN
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.stack import Stack
from macaron_tf.plug_ins import is_import_path

MODULE = "modeling_macaron"
CLASSES = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid")
# Number of sub-layers and of relative biases that have entries in the mapping of weight names.
_NUM_ENTRIES = 100
_FIELDS = (
    *("hidden_dim", "feed_forward_dim", "num_heads", "num_layers", "head_dim", "embedding_dim"),
    *("block", "scheme", "rnn_step_sizes", "rnn_gate", "sharing", "relative_bias"),
    *("activation", "gated", "use_bias", "scaled", "norm", "norm_type", "epsilon", "affine"),
    *("num_kv_heads", "attention_windows", "first_norm"),
    *("rotary_base", "local_rotary_base", "rotary_dim", "rotary_scaling"),
    *("positions", "max_length", "toeplitz", "tiny_attention_dim", "num_segments"),
    *("embedding_norm", "embedding_scale", "initializer_range"),
    *("dropout", "attention_dropout", "activation_dropout", "causal", "tied"),
)
# transformers treats `max_length` as a text generation setting, and then cannot save the model.
_RENAMED = {"max_length": "max_position_embeddings"}


def _attention_sizes(mixer: MultiHeadAttention, config: EncoderConfig) -> dict[str, Any]:
    sizes = {"window": mixer.window} if mixer.window else {}
    if isinstance(mixer, RotaryAttention):
        sizes["rotary_base"] = mixer.rotary_base
    return sizes


_SIZES: dict[type[Mixer], Callable[[Any, EncoderConfig], dict[str, Any]]] = {
    **dict.fromkeys((MultiHeadAttention, AlibiAttention, RotaryAttention), _attention_sizes),
    FeedForward: lambda mixer, config: {
        "inner_dim": mixer.config.feed_forward_dim,
        "activation": mixer.config.activation,
    },
    SwishRNN: lambda mixer, config: {
        "inner_dim": mixer.inner_dim,
        "distance": mixer.step_size,
        "gate": mixer.gate,
    },
    GatedMLP: lambda mixer, config: {
        "inner_dim": mixer.feed_forward_dim,
        "activation": config.activation,
        "tiny_attention_dim": mixer.tiny_attention_dim,
        **({"rotary_base": mixer.rotary_base} if mixer.rotary_base else {}),
    },
}


def own_code() -> dict[str, bytes]:
    """Returns a dict mapping the name of the PyTorch file to its contents."""
    file = importlib.resources.files("macaron_tf.hub") / "remote" / f"{MODULE}.py"
    return {file.name: file.read_bytes()}


def own_settings(config: ForeignConfig) -> dict[str, Any]:
    """Reads `EncoderConfig` settings from a `config.json` (the inverse of `own_fields`)."""
    fields = {name: _RENAMED.get(name, name) for name in _FIELDS}
    values = {name: config.get(field) for name, field in fields.items()}
    return {name: value for name, value in values.items() if value is not None}


def own_fields(config: EncoderConfig) -> dict[str, Any]:
    """Converts an `EncoderConfig` to the fields of `config.json`.

    If the PyTorch file does not support the value of a setting, the result omits the field of this
    setting. `unsupported_settings` then reports the setting.
    """
    fields = {name: getattr(config, name) for name in _FIELDS}
    activations = [mix.activation for scheme in config.splittings for mix in scheme]
    unsupported = {
        "positions": config.relative,
        "norm": config.norm == "output",
        # A causal gMLP cannot decode token by token.
        "block": any(map(is_import_path, config.blocks))
        or (config.causal and bool(config.without_attention)),
        "activation": config.activation not in ACTIVATIONS,
        "scheme": any(name not in (None, *ACTIVATIONS) for name in activations),
    }
    fields = {
        _RENAMED.get(name, name): value
        for name, value in fields.items()
        if value is not None and not unsupported.get(name, False)
    }
    layers = [] if any(unsupported.values()) else _layers(config)
    return {**fields, "layers": layers, "auto_map": _auto_map()}


def _auto_map() -> dict[str, str]:
    heads = ("Config", "Model", *(f"For{name}" for name in ("MaskedLM", "CausalLM", *CLASSES)))
    auto_names = (name if name in heads[:2] else f"Model{name}" for name in heads)
    pairs = zip(auto_names, heads, strict=True)
    return {f"Auto{name}": f"{MODULE}.Macaron{head}" for name, head in pairs}


def _layers(config: EncoderConfig) -> list[list[dict[str, Any]]]:
    """Builds the field `layers` of `config.json`, which lists the sub-layers of each layer.

    `MacaronConfig` in the PyTorch file documents the fields of a sub-layer.
    """
    stack = Stack(config, config.num_layers, sharing=config.sharing)
    names: dict[int, str] = {}  # from `id` of a mixer or norm to its name; both may be shared
    layers: list[list[dict[str, Any]]] = []
    num_biased = 0
    for index, block in enumerate(stack.blocks):
        layers.append([])
        for branches in block.steps:
            for operator, residual in branches:
                mixer, first_residual = residual.sublayer, branches[0][1]
                name = names.setdefault(id(mixer), f"block_{index}.{residual.name}")
                norm_owner = residual if config.norm == "pre" else first_residual
                norm = norm_owner.layer_norm and names.setdefault(id(norm_owner.layer_norm), name)
                settings = {
                    "name": name,
                    "mixer": mixer.name,
                    "step_size": residual.step_size,
                    "solver": residual.solver,
                    **({"norm": norm} if norm != name else {}),
                    **({"joined": True} if residual is not branches[-1][1] else {}),
                    **_SIZES[type(mixer)](mixer, config),
                }
                if operator == "tokens" and block.takes_bias and stack.biases:
                    settings["bias"] = stack.biases[num_biased % len(stack.biases)].name
                layers[-1].append(settings)
        num_biased += block.takes_bias
    return layers


def _own_table() -> Table:
    """Builds the mapping of weight names for the PyTorch file.

    A name in PyTorch is the end of the path in macaron_tf, with dots instead of slashes.
    """
    layer_names = {
        "attention": ("query_key_value", "query", "key_value", "output"),
        "feed_forward": ("inner", "outer"),
        "swish_rnn": ("inner", "outer"),
        "gated_mlp": (
            *("inner", "outer", "gating/norm"),
            *("tiny_attention/query_key_value", "tiny_attention/output"),
        ),
    }
    weight_names = {
        "swish_rnn": ("alpha", "beta", "state_bias", "gate_bias"),
        "gated_mlp": ("gating/kernel", "gating/bias"),
    }
    table: dict[str, str | Raw] = {
        "embeddings/norm": "embeddings.norm",
        "embeddings/segments": Raw("embeddings.segments.weight"),
        "encoder/projection": "projection",
        "language_head/projection": "language_head.projection",
        "stack/final_norm": "stack.final_norm",
    }
    for index in range(_NUM_ENTRIES):
        bias = f"stack/relative_bias_{index}"
        table[bias] = f"{_dotted(bias)}.table"
        for mixer, layers in layer_names.items():
            name = f"{'feed_forward' if mixer == 'swish_rnn' else mixer}_{index}"
            block = f"stack/block_{{}}/{name}"
            table[f"{block}/norm"] = _dotted(f"{block}/norm")
            for layer in layers:
                path = f"{block}/{mixer}/{layer}"
                table[path] = _dotted(path)
            for weight in weight_names.get(mixer, ()):
                path = f"{block}/{mixer}/{weight}"
                table[path] = Raw(_dotted(path))
    return table


def _dotted(path: str) -> str:
    return path.replace("/", ".")


OWN_TABLE = _own_table()
