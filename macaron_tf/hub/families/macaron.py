"""Networks with any block of macaron_tf, for `remote/modeling_macaron.py`, our code in PyTorch.

An exported folder includes this PyTorch file if no model in transformers can express an encoder or
a causal language model.
"""

import importlib.resources
import re
from typing import Any

from macaron_tf import models
from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import Raw, Table
from macaron_tf.hub.config import ForeignConfig
from macaron_tf.hub.encoders import EncoderFamily, head_table
from macaron_tf.hub.family import ModelFolder
from macaron_tf.hub.heads import text_heads, token_heads
from macaron_tf.hub.language_models import LanguageFamily
from macaron_tf.io.plug_ins import is_import_path
from macaron_tf.layers.attention import MultiHeadAttention
from macaron_tf.layers.feed_forward import FeedForward
from macaron_tf.layers.mixer import Mixer
from macaron_tf.layers.rotary import RotaryAttention
from macaron_tf.layers.swish_rnn import SwishRNN
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.settings import hints_of

_ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu", "tanh", "sigmoid")
# Settings that the PyTorch file lacks.
_LEFT_OUT = (
    *("vocab_size", "pad_id", "position_offset", "num_languages", "summary", "clamp_length"),
    *("shared_position_biases", "adaptive_cutoffs", "adaptive_divisor"),
    *("remat", "scaled_outputs", "output_bias"),
)
# Dict mapping a setting to its field. transformers treats the name `max_length` as a text
# generation setting, and then cannot save the model. Version 4 ties by its own field.
_FIELDS = {name: name for name in hints_of(models.EncoderConfig) if name not in _LEFT_OUT}
_FIELDS |= {"max_length": "max_position_embeddings", "tied": "tie_word_embeddings"}
_HEADS = (
    *("MaskedLM", "CausalLM", "SequenceClassification", "TokenClassification"),
    *("QuestionAnswering", "MultipleChoice"),
)
_CLASSES = {"AutoConfig": "Config", "AutoModel": "Model"}
_CLASSES |= {f"AutoModelFor{head}": f"For{head}" for head in _HEADS}


def _sizes(mixer: Mixer, config: models.EncoderConfig) -> dict[str, Any]:
    """Returns the fields of a sub-layer that depend on its mixer."""
    if isinstance(mixer, MultiHeadAttention):
        rotary = {"rotary_base": mixer.rotary_base} if isinstance(mixer, RotaryAttention) else {}
        return {**({"window": mixer.window} if mixer.window else {}), **rotary}
    if isinstance(mixer, FeedForward):
        feed_forward = mixer.config
        return {"inner_dim": feed_forward.feed_forward_dim, "activation": feed_forward.activation}
    if isinstance(mixer, SwishRNN):
        return {"inner_dim": mixer.inner_dim, "distance": mixer.step_size, "gate": mixer.gate}
    return {
        "inner_dim": mixer.feed_forward_dim,
        "activation": config.activation,
        "tiny_attention_dim": mixer.tiny_attention_dim,
        **({"rotary_base": mixer.rotary_base} if mixer.rotary_base else {}),
    }


def code() -> dict[str, bytes]:
    """Returns a dict mapping the name of the PyTorch file to its contents."""
    file = importlib.resources.files("macaron_tf.hub") / "remote" / "modeling_macaron.py"
    return {file.name: file.read_bytes()}


def _settings(config: ForeignConfig) -> dict[str, Any]:
    """Reads `EncoderConfig` settings from a `config.json` (the inverse of `_fields`)."""
    values = {name: config.get(field) for name, field in _FIELDS.items()}
    settings = {name: value for name, value in values.items() if value is not None}
    layers = config.get("layers")
    if layers and layers != _layers(
        models.EncoderConfig(**{"vocab_size": 8, **settings}, trust_code=False)
    ):
        found = f"{config.where} has layers that do not follow from its other fields"
        raise UserError(f"{found}: correct the fields, for example block or scheme")
    return settings


def _fields(config: models.EncoderConfig) -> dict[str, Any]:
    """Converts an `EncoderConfig` to the fields of `config.json` that the PyTorch file supports."""
    activations = [mix.activation for scheme in config.splittings for mix in scheme]
    unsupported = {
        "positions": config.positions == "transformer_xl",
        "norm": config.norm == "none",
        # A causal gMLP cannot decode token by token.
        "block": any(map(is_import_path, config.blocks))
        or (config.causal and bool(config.without_attention)),
        "activation": config.activation not in _ACTIVATIONS,
        "scheme": any(name not in (None, *_ACTIVATIONS) for name in activations),
    }
    fields = {
        _FIELDS[name]: value
        for name, value in config.options(*_FIELDS).items()
        if value is not None and not unsupported.get(name, False)
    }
    layers = [] if any(unsupported.values()) else _layers(config)
    auto_map = {name: f"modeling_macaron.Macaron{suffix}" for name, suffix in _CLASSES.items()}
    return {**fields, "layers": layers, "auto_map": auto_map}


def _layers(config: models.EncoderConfig) -> list[list[dict[str, Any]]]:
    """Builds the field `layers` of `config.json`, which lists the sub-layers of each layer."""
    stack = models.Stack(config, config.num_layers, sharing=config.sharing)
    names: dict[int, str] = {}  # from `id` of a mixer or norm to its name; both may be shared
    layers: list[list[dict[str, Any]]] = []
    num_biased = 0
    for index, block in enumerate(stack.blocks):
        layers.append([])
        for branches in block.steps:
            for operator, residual in branches:
                mixer, first_residual = residual.sublayer, branches[0][1]
                name = names.setdefault(id(mixer), f"block_{index}.{residual.name}")
                norm_owner = first_residual if config.norm == "post" else residual
                norm = norm_owner.layer_norm and names.setdefault(id(norm_owner.layer_norm), name)
                settings = {
                    "name": name,
                    "mixer": mixer.name,
                    "step_size": residual.step_size,
                    "solver": residual.solver,
                    **({"norm": norm} if norm != name else {}),
                    **({"joined": True} if residual is not branches[-1][1] else {}),
                    **_sizes(mixer, config),
                }
                if operator == "tokens" and block.takes_bias and stack.biases:
                    settings["bias"] = stack.biases[num_biased % len(stack.biases)].name
                layers[-1].append(settings)
        num_biased += block.takes_bias
    return layers


# Weights that are no layer's kernel, bias or norm in PyTorch either.
_SINGLE = re.compile(r"_scale$|swish_rnn/(alpha|beta|state_bias|gate_bias)$|gating/(kernel|bias)$")


def _stack_name(path: str) -> str | Raw | None:
    """Returns PyTorch's name of a layer or weight in the stack: our path, with dots for slashes."""
    match = re.search(r"(?:^|/)(stack/.*)$", path)
    if match is None:
        return None
    layer, _, variable = match[1].replace("/", ".").rpartition(".")
    if _SINGLE.search(path):
        return Raw(f"{layer}.{variable}")
    return f"{layer}.table" if "relative_bias" in layer else layer


_TABLE: Table = {
    "embeddings/norm": "embeddings.norm",
    "embeddings/segments": Raw("embeddings.segments.weight"),
    "encoder/projection": "projection",
    "language_head/projection": "language_head.projection",
    "stack": _stack_name,
}
_NAMES: dict[str, Any] = {
    "model_type": "macaron",
    "name": "Macaron",
    "prefix": "macaron.",
    "body_prefixes": ("embeddings.", "projection.", "stack."),
    "tokens": ("embeddings.tokens.weight",),
    "derive_settings": _settings,
    "derive_fields": _fields,
}
MACARON_LANGUAGE = LanguageFamily(
    **_NAMES,
    catalog="gpt2_base",
    language_class="ForCausalLM",
    table={**_TABLE, "embeddings/positions/table": Raw("embeddings.positions.weight")},
    output_kernel="language_head.output_table.weight",
    bias="language_head.bias",
    fixed_settings={"output_bias": True},
    required_fields={"causal": True},
)


class _MacaronFamily(EncoderFamily):
    """Rules for all networks with blocks of macaron_tf, which have the same `model_type`."""

    def read(self, folder: ModelFolder) -> ModelParts:
        if folder.config.architecture.endswith(MACARON_LANGUAGE.language_class):
            return MACARON_LANGUAGE.read(folder)
        return super().read(folder)


_POOLED = {"pooler/dense": "pooler.dense", "pooler/norm": "pooler.norm"}
MACARON = _MacaronFamily(
    **_NAMES,
    table=_TABLE,
    heads=head_table("masked_language.", "norm"),
    tasks={
        **text_heads({**_POOLED, "head/dense": "head.dense"}, activation_field="pooler_activation"),
        **token_heads("head.dense", "head.dense"),
    },
    bias=("masked_language.bias",),
    positions="embeddings.positions.weight",
)
