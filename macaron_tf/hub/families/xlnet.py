"""XLNet: permutation language modelling with two streams and memory of the last segment."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from macaron_tf.hub.arrays import Arrays, Raw, Table, assign_weights, layer_state, padded_rows
from macaron_tf.hub.config import ACTIVATIONS, required, sizes
from macaron_tf.hub.encoders import EncoderFamily
from macaron_tf.hub.family import HuggingFaceFolder, ModelFolder, build_model, kept_rows
from macaron_tf.hub.heads import HEADED, TaskHead, text_heads, token_heads
from macaron_tf.hub.tokenizers.writing import refuse_moses, tokenizer_files
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.models.segment_memory import TwoStreamModel

_XLNET_SUMMARY = "sequence_summary.summary"  # the counterpart of BERT's pooler


def xlnet_attention(heads: int) -> Table:
    """Builds the mapping of weight names for XLNet's attention. Only an export uses H, `heads`."""

    def raw(*names: str, read: Callable, write: Callable) -> Raw:
        names = tuple(f"layer.{{}}.rel_attn.{name}" for name in names)
        return Raw(*names, transform=read, inverse=write)

    def split(kernel: np.ndarray) -> np.ndarray:
        return kernel.reshape(len(kernel), heads, -1)  # (D, H d) -> (D, H, d)

    flat = {"read": lambda kernel: kernel.reshape(len(kernel), -1), "write": split}
    turned = {"read": lambda kernel: flat["read"](kernel).T, "write": lambda k: split(k.T)}
    per_head = {"read": lambda bias: bias[:, None], "write": lambda bias: bias[:, 0]}
    swapped = dict.fromkeys(("read", "write"), lambda vectors: vectors.transpose(1, 0, 2))
    return {
        "attention/query/kernel": raw("q", **flat),
        "attention/key_value/kernel": raw("k", "v", **flat),
        "attention/distance/kernel": raw("r", **flat),
        "attention/output/kernel": raw("o", **turned),  # (D, H, d) -> (H d, D)
        "attention/content_bias": raw("r_w_bias", **per_head),  # (H, d) -> (H, 1, d)
        "attention/distance_bias": raw("r_r_bias", **per_head),
        "attention/segment_bias": raw("r_s_bias", **per_head),
        "attention/segment_vectors": raw("seg_embed", **swapped),  # (2, H, d) -> (H, 2, d)
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class XlnetFamily(EncoderFamily):
    """Rules for XLNet, whose network has two streams.

    [CLS] is the last token of a sequence. The pooler of a classifier reads the output at [CLS], or
    at the first position if `config.json` has `summary_type="first"`. The tokenizer is optional.

    Attributes:
        memory_length: maximum number of positions in the memory.
    """

    networks = (TwoStreamModel, *HEADED)
    tokenizer_files: tuple[str, ...] = ("spiece.model", "tokenizer.json")
    memory_length: int = 384

    def read(self, folder: ModelFolder) -> ModelParts:
        """Reads an XLNet, with its language-model head or its task head if there is one.

        If there is neither head, the result has a language-model head with random weights.
        """
        config = folder.config
        table = {**self.table}
        if config.get("summary_type", "last") != "last":  # a pooler reads the last position
            del table["pooler/dense"]
        memory_length = config.get("mem_len") or self.memory_length
        family = dataclasses.replace(self, table=table, memory_length=memory_length)
        model = EncoderFamily.read(family, folder)
        if type(model.network) in self.tasks and config.get("summary_type") != "first":
            config.require({"summary_type": "last"})
        return model

    def pretraining_network(
        self, arrays: Arrays, settings: Mapping[str, Any], table: Table
    ) -> tuple[keras.Model, str | None]:
        has_pooler = arrays.has_layer(table.get("pooler/dense"))
        network = build_model(TwoStreamModel, settings, self.memory_length, pooler=has_pooler)
        has_head = arrays.has(*self.bias)
        pad = padded_rows(settings["vocab_size"], is_bias=True)
        table = {**table, "language_head/bias": Raw(*self.bias, transform=pad)}
        assign_weights(network, arrays, table, random_layers=() if has_head else ("language_head",))
        return network, "permutation_language" if has_head else None

    def write(self, model: ModelParts) -> HuggingFaceFolder:
        """Converts an XLNet, with its language-model head or task head, to Hugging Face's files.

        A randomly initialized language-model head is left out, and so is a pooler.
        """
        network, config = model.network, model.config
        table = {**self.table, **xlnet_attention(config.num_heads)}
        folder = EncoderFamily.write(dataclasses.replace(self, table=table), model)
        head, rows = self._written_head(model), kept_rows(model)
        vector, state = np.zeros(config.hidden_dim, "float32"), {**folder.state}
        memory_length = None
        if isinstance(network, TwoStreamModel):
            memory_length = network.memory_length
            vector = keras.ops.convert_to_numpy(network.query_vector).astype("float32")
        prefix = "" if head is _BARE else self.prefix
        state[f"{prefix}mask_emb"] = vector[None, None]  # (D,) -> (1, 1, D)
        if head is _LANGUAGE:
            bias = Raw(*self.bias, inverse=lambda bias: bias[rows])
            state |= layer_state(network.language_head, {"language_head/bias": bias})
        fields = {**folder.config, "mem_len": memory_length}
        return dataclasses.replace(folder, config=fields, state=state)

    def _written_head(self, model: ModelParts) -> TaskHead:
        if isinstance(model.network, HEADED):
            return self.tasks[type(model.network)]
        return _LANGUAGE if model.card.objective else _BARE

    def written_tokenizer(self, model: ModelParts) -> dict[str, bytes]:
        refuse_moses(model.vocabulary)
        # Hugging Face's XLNet classifiers read the last position, so padding is on the left.
        return tokenizer_files(model.vocabulary, padding_side="left")


# XLNet's classes without a task head, which do not know the name of a task on the Hub.
_LANGUAGE, _BARE = TaskHead("LMHeadModel", "", {}), TaskHead("Model", "", {})
XLNET = XlnetFamily(
    model_type="xlnet",
    name="XLNet",
    catalog="xlnet_base",
    class_prefix="XLNet",
    tokens=("word_embedding.weight",),
    table={
        "query_vector": Raw("mask_emb", transform=np.ravel),
        **xlnet_attention(1),  # reading does not depend on the number of heads
        "attention_0/norm": "layer.{}.rel_attn.layer_norm",
        "feed_forward/inner": "layer.{}.ff.layer_1",
        "feed_forward/outer": "layer.{}.ff.layer_2",
        "feed_forward_1/norm": "layer.{}.ff.layer_norm",
        "pooler/dense": _XLNET_SUMMARY,
    },
    bias=("lm_loss.bias",),
    padding_id=5,
    checks_padding=True,
    settings={
        **sizes(1024, 16, 24, 4096, fields="d_model n_head n_layer d_inner"),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("dropout", 0.1),
        "activation_dropout": ("dropout", 0.1),
        "epsilon": ("layer_norm_eps", 1e-12),
        "activation": ("ff_activation", "gelu", ACTIVATIONS),
    },
    fixed_settings={"positions": "transformer_xl", "embedding_norm": False},
    derive_settings=lambda config: {
        "clamp_length": max(config.number("clamp_len", -1), 0) or None,
        "summary": "first" if config.get("summary_type") == "first" else "last",
    },
    derive_fields=lambda config: {
        "clamp_len": config.clamp_length or -1,
        "summary_type": config.summary,
    },
    required_fields=required(
        "untie_r tie_word_embeddings summary_use_proj", "bi_data same_length", attn_type="bi"
    ),
    prefix="transformer.",
    body_prefixes=("layer.",),
    tasks={
        **text_heads(
            {"pooler/dense": _XLNET_SUMMARY, "head/dense": "logits_proj"},
            activation_field="summary_activation",
        ),
        **token_heads(reader_class="ForQuestionAnsweringSimple"),
    },
    head_dropout="summary_last_dropout",
)
