"""XLNet: permutation language modelling with two streams and memory of the last segment."""

import keras
import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.hub.arrays import (
    UNUSED_TOKEN_BIAS,
    Raw,
    Table,
    assign_weights,
    check_pieces,
    padded_rows,
    read_state,
)
from macaron_tf.hub.config import ACTIVATIONS
from macaron_tf.hub.encoders import TASKS
from macaron_tf.hub.family import (
    Family,
    ModelFolder,
    build_model,
    missing_head,
    pooled_heads,
    token_heads,
)
from macaron_tf.hub.heads import find_head, head_fields, head_state
from macaron_tf.hub.tokenizers.decoders import refuse_moses, replace_fields
from macaron_tf.hub.tokenizers.reading import read_vocabulary, refuse_lower_case
from macaron_tf.hub.tokenizers.writing import tokenizer_files
from macaron_tf.hub.writing import HuggingFaceFolder, kept_rows, layer_state
from macaron_tf.layers.heads import Pooler
from macaron_tf.models.segment_memory import TwoStreamModel
from macaron_tf.pretrained import Pretrained
from macaron_tf.special import Special
from macaron_tf.text import PieceVocabulary

_XLNET_PADDING = 5  # if config.json does not say
_XLNET_SUMMARY = "sequence_summary.summary"  # the counterpart of BERT's pooler


def _per_head(name: str) -> Raw:
    return Raw(
        f"layer.{{}}.rel_attn.{name}",
        transform=lambda bias: bias[:, None],  # (H, d) -> (H, 1, d)
        inverse=lambda bias: bias[:, 0],
    )


def _flattened_heads(*names: str, heads: int, transposed: bool = False) -> Raw:
    """Builds a `Raw` that reshapes XLNet's attention kernels from `(D, H, d)` to `(D, H d)`.

    Args:
        names: names of the kernels in XLNet's attention layer, such as "q".
        heads: H, the number of heads. Only an export uses `heads`.
        transposed: whether to also transpose the result to `(H d, D)`.
    """

    def flat(kernel: np.ndarray) -> np.ndarray:
        kernel = kernel.reshape(len(kernel), -1)  # (D, H, d) -> (D, H d)
        return kernel.T if transposed else kernel

    def split(kernel: np.ndarray) -> np.ndarray:
        kernel = kernel.T if transposed else kernel
        return kernel.reshape(len(kernel), heads, -1)  # (D, H d) -> (D, H, d)

    arrays = (f"layer.{{}}.rel_attn.{name}" for name in names)
    return Raw(*arrays, transform=flat, inverse=split)


def _swap_axes(vectors: np.ndarray) -> np.ndarray:
    return vectors.transpose(1, 0, 2)  # (2, H, d) -> (H, 2, d), and back


def xlnet_attention(heads: int) -> Table:
    """Builds the mapping of weight names for XLNet's attention.

    `heads` is the number of heads. Only an export uses `heads`.
    """
    return {
        "attention/query/kernel": _flattened_heads("q", heads=heads),
        "attention/key_value/kernel": _flattened_heads("k", "v", heads=heads),
        "attention/distance/kernel": _flattened_heads("r", heads=heads),
        "attention/output/kernel": _flattened_heads("o", heads=heads, transposed=True),
        "attention/content_bias": _per_head("r_w_bias"),
        "attention/distance_bias": _per_head("r_r_bias"),
        "attention/segment_bias": _per_head("r_s_bias"),
        "attention/segment_vectors": Raw(
            "layer.{}.rel_attn.seg_embed", transform=_swap_axes, inverse=_swap_axes
        ),
    }


class XlnetFamily(Family):
    """Rules for XLNet, whose network has two streams."""

    networks = (TwoStreamModel, *TASKS)

    def read(self, folder: ModelFolder) -> Pretrained:
        """Reads an XLNet, with its language-model head or its task head if there is one.

        If there is neither head, the result has a language-model head with random weights. [CLS] is
        the last token of a sequence. The pooler of a classifier reads the output at [CLS], or at
        the first position if `config.json` has `summary_type="first"`. The tokenizer is optional.
        """
        config = folder.config
        refuse_lower_case(folder.lower_case, folder.path)
        settings, arrays = self.read_settings(config), self.arrays(read_state(folder.path))
        tokens = arrays.array(*self.tokens)  # (V', D)
        special = Special(config.number("pad_token_id", _XLNET_PADDING), rows=len(tokens))
        names = ("spiece.model", "tokenizer.json")
        vocabulary: PieceVocabulary | None = folder.vocabulary
        if vocabulary is None and any((folder.path / name).is_file() for name in names):
            vocabulary = read_vocabulary(folder.path)
        if vocabulary:
            check_pieces(vocabulary, tokens)
            if vocabulary.special.pad != special.pad:
                raise UserError(
                    f"the padding token has id {vocabulary.special.pad} in the tokenizer of "
                    f"{folder.path}, but {special.pad} in the model: use the tokenizer files that "
                    "belong to the model"
                )
            special = vocabulary.special
        size = special.size
        table = {
            **self.table,
            "tokens/table": padded_rows(size)(tokens),
            "language_head/bias": Raw(
                "lm_loss.bias", transform=padded_rows(size, UNUSED_TOKEN_BIAS)
            ),
        }
        settings |= {"vocab_size": size, "pad_id": special.pad}
        if task_head := folder.has_task and find_head(self, config, arrays, settings):
            if config.get("summary_type") != "first":
                config.require({"summary_type": "last"})
            network = build_model(task_head.network_class, settings, **task_head.options)
            assign_weights(network, arrays, {**table, **task_head.head.table})
            unread = self.check_unread(arrays)
            fields = {"unread": unread, **task_head.fields}
            return Pretrained(network, self.catalog, None, vocabulary, special, **fields)
        memory_length = config.get("mem_len") or 384  # positions
        network = build_model(TwoStreamModel, settings, memory_length)
        has_head = arrays.has("lm_loss.bias")
        assign_weights(network, arrays, table, random_layers=() if has_head else ("language_head",))
        pooler = None
        if config.get("summary_type", "last") == "last" and arrays.has_layer(_XLNET_SUMMARY):
            pooler = Pooler(name="pooler")
            pooler.build((None, None, network.config.hidden_dim))
            assign_weights(pooler, arrays, table)
        unread = self.check_unread(arrays)
        objective = "permutation_language" if has_head else None
        fields = {"has_masked_language": has_head, "missing_head": missing_head(config, unread)}
        fields |= {"unread": unread, "pooler": pooler}
        return Pretrained(network, self.catalog, objective, vocabulary, special, **fields)

    def is_tried(self, model: Pretrained) -> bool:
        is_xlnet = isinstance(model.network, TwoStreamModel)
        return super().is_tried(model) and (is_xlnet or model.config.positions == "transformer_xl")

    def write(self, model: Pretrained) -> HuggingFaceFolder:
        """Converts an XLNet, with its language-model head or task head, to Hugging Face's files.

        A randomly initialized language-model head is left out, and so is `Pretrained.pooler`.
        """
        network, config, vocabulary = model.network, model.config, model.vocabulary
        rows = kept_rows(model)
        task = self.tasks.get(type(network))
        has_head = not task and (model.has_masked_language or bool(model.recipe))
        class_suffix = task.class_suffix if task else "LMHeadModel" if has_head else "Model"
        fields = {
            **self.written_fields(config, self.class_prefix + class_suffix, len(rows)),
            "mem_len": None if task else network.memory_length,
            "pad_token_id": model.special.pad,
        }
        table = {
            **self.table,
            **xlnet_attention(config.num_heads),
            "tokens/table": Raw(self.tokens[0], inverse=lambda table: table[rows]),
            "language_head/bias": Raw("lm_loss.bias", inverse=lambda bias: bias[rows]),
        }
        prefix = self.prefix if task or has_head else ""
        state = layer_state(network.encoder, table, prefix)
        vector = np.zeros(config.hidden_dim, "float32")
        if task:
            fields |= head_fields(model, self, type(network))
            state |= head_state(model, task.table)
        else:
            vector = keras.ops.convert_to_numpy(network.query_vector).astype("float32")
        state[f"{prefix}mask_emb"] = vector[None, None]  # (D,) -> (1, 1, D)
        if has_head:
            state |= layer_state(network.language_head, table)
        notes, tokenizer = [], {}
        if model.pooler:
            notes.append("the pooler is left out, because only XLNet's classifiers have a pooler")
        if vocabulary:
            refuse_moses(vocabulary)
            # Hugging Face's XLNet classifiers read the last position, so padding is on the left.
            tokenizer = replace_fields(tokenizer_files(vocabulary), {}, {"padding_side": "left"})
        return HuggingFaceFolder(
            config=fields,
            state=state,
            tokenizer=tokenizer,
            pipeline=task.pipeline if task else "",
            notes=tuple(notes),
        )


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
    settings={
        "hidden_dim": ("d_model", 1024),
        "feed_forward_dim": ("d_inner", 4096),
        "num_heads": ("n_head", 16),
        "num_layers": ("n_layer", 24),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("dropout", 0.1),
        "activation_dropout": ("dropout", 0.1),
        "epsilon": ("layer_norm_eps", 1e-12),
        "initializer_range": ("initializer_range", 0.02),
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
    required_fields={
        "attn_type": "bi",
        "bi_data": False,
        "same_length": False,
        "untie_r": True,
        "tie_word_embeddings": True,
        "summary_use_proj": True,
    },
    without_effect=(
        *("d_head", "reuse_len", "use_mems_eval", "use_mems_train", "start_n_top", "end_n_top"),
        *("summary_activation", "summary_last_dropout"),  # read with a task head
    ),
    prefix="transformer.",
    output_kernel="lm_loss.weight",
    body_prefixes=("layer.",),
    tasks={
        **pooled_heads(
            {"pooler/dense": _XLNET_SUMMARY, "head/dense": "logits_proj"},
            activation_field="summary_activation",
        ),
        **token_heads(reader_class="ForQuestionAnsweringSimple"),
    },
    head_dropout="summary_last_dropout",
)
