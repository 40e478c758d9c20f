"""BERT and its relatives in Hugging Face: see `FAMILIES`; and sentence-transformers.

Each family is a table of names. KerasHub's and Model Garden's BERT have theirs in `keras_models`
and come through `import_encoder` too.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop.arrays import (
    ACTIVATIONS,
    UNUSED_TOKEN_BIAS,
    Arrays,
    Family,
    ForeignConfig,
    Raw,
    Table,
    TaskHead,
    assign_weights,
    built,
    check_files,
    read_json,
    rows,
    say_spare_rows,
    transformer_layer,
)
from macaron_tf.interop.own_layers import OWN_TABLE, own_code, own_fields, own_settings
from macaron_tf.interop.task_heads import ReadHead, find_head
from macaron_tf.interop.vocabularies import read_vocabulary, read_xlm_vocabulary
from macaron_tf.layers.heads import Pooler
from macaron_tf.layers.language_heads import ReplacedTokenHead
from macaron_tf.models.config import EncoderConfig
from macaron_tf.models.pretraining import PretrainingEncoder
from macaron_tf.models.tasks import (
    EncoderChooser,
    EncoderClassifier,
    EncoderSpanReader,
    EncoderTagger,
)
from macaron_tf.pretrained import Pretrained
from macaron_tf.text import PieceVocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFamily(Family):
    """A family of encoders; None or empty for parts that it has not.

    Attributes:
        heads: the layers over the body that score tokens and pairs of texts; a model may lack any
            of them, and of `table` the pooler.
        code: the Python files, by name, that a folder holds for `trust_remote_code=True`.
        masked_class: ending of the class that scores masked tokens.
        positions, segments: arrays of Hugging Face, both read before the table is.
        bias: names of the bias of the head over masked tokens, one of which there is.
        head_options: of our head over masked tokens, where they are not the encoder's.
        moses: whether words are cut by Moses's rules, see `read_xlm_vocabulary`; the tokenizer's
            files may then be missing.
        padding: their padding's id where the configuration does not say.
        positions_from_padding: whether the first position is the one after the padding's id.
    """

    heads: Table = dataclasses.field(default_factory=dict)
    code: Callable[[], dict[str, bytes]] = dict
    masked_class: str = "ForMaskedLM"
    positions: str = ""
    segments: str | None = None
    bias: tuple[str, ...] = ()
    head_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    moses: bool = False
    padding: int = 0
    positions_from_padding: bool = False


def import_encoder(
    arrays: Arrays,
    family: EncoderFamily,
    settings: Mapping[str, Any],
    vocabulary: PieceVocabulary | None,
    ids: np.ndarray | None = None,
    found: ReadHead | None = None,
) -> Pretrained:
    """Makes our encoder of another library's.

    Args:
        settings: fields of the `EncoderConfig` but for `vocab_size`, which is the vocabulary's:
            rows of the table beyond it are left out, since no text reaches them.
        vocabulary: theirs; None keeps all rows.
        ids: their id for each of ours, where they differ.
        found: the head of the task that it was trained for.
    """
    tokens = arrays.array(*family.tokens)  # (V', E)
    size, pieces = -(-len(tokens) // 8) * 8, 0
    if vocabulary is not None:
        size, pieces = vocabulary.size, vocabulary.pieces
        say_spare_rows(tokens, pieces)
    kept = np.arange(max(min(len(tokens), size), pieces)) if ids is None else ids
    table = {**family.table, **family.heads, "tokens/table": rows(kept, size)(tokens)}
    if found:
        network = built(found.kind, {"vocab_size": size, **settings}, **found.options)
        assign_weights(network, arrays, {**table, **found.head.table})
        return Pretrained(network, "bert_base", None, vocabulary, ids, **found.fields)
    bias = next(filter(arrays.has, family.bias), None)
    if bias:
        table["masked_language/bias"] = Raw(bias, transform=rows(kept, size, UNUSED_TOKEN_BIAS))
    has_pooler = arrays.has_layer(table.get("pooler/dense"))
    network = built(
        PretrainingEncoder,
        {"vocab_size": size, **settings},
        has_pooler and arrays.has_layer(table.get("sentence_pair/dense")),
        family.head_options if bias else None,
    )
    assign_weights(network, arrays, table, drawn=() if bias else ("masked_language",))
    heads, config = {}, network.config
    if has_pooler:
        heads["pooler"] = Pooler(name="pooler")
    if arrays.has_layer(table.get("replaced_token/dense")):
        heads["replaced_token"] = ReplacedTokenHead(config.activation, name="replaced_token")
    for head in heads.values():
        head.build((None, None, config.hidden_dim))
        assign_weights(head, arrays, table)
    return Pretrained(
        network,
        "bert_base",
        "masked_language",
        vocabulary,
        ids,
        has_masked_language=bias is not None,
        **heads,
    )


def _xlm_settings(config: ForeignConfig) -> dict:
    languages = config.number("n_langs", 1)
    return {
        "activation": "gelu" if config.get("gelu_activation", True) else "relu",
        "feed_forward_dim": 4 * config.number("emb_dim", 2048),
        # A model of one language has no table of languages.
        "num_languages": languages if languages > 1 and config.get("use_lang_emb", True) else 0,
    }


def _xlm_fields(config: EncoderConfig) -> dict:
    """The inverse of `_xlm_settings`."""
    return {
        "gelu_activation": config.activation == "gelu",
        "n_langs": max(config.num_languages, 1),
        "use_lang_emb": config.num_languages > 0,
    }


def head_table(prefix: str, norm: str = "LayerNorm") -> Table:
    """The transformation of the head over masked tokens."""
    return {"masked_language/dense": f"{prefix}dense", "masked_language/norm": prefix + norm}


_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
SETTINGS = {
    "hidden_dim": ("hidden_size", 768),
    "feed_forward_dim": ("intermediate_size", 3072),
    "num_heads": ("num_attention_heads", 12),
    "num_layers": ("num_hidden_layers", 12),
    "max_length": ("max_position_embeddings", 512),
    "num_segments": ("type_vocab_size", 2),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "epsilon": ("layer_norm_eps", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
    "activation": ("hidden_act", "gelu", ACTIVATIONS),
}
_LAYERS = transformer_layer(
    "encoder.layer.{}.",
    [*(f"attention.self.{part}" for part in ("query", "key", "value")), "attention.output.dense"],
    "attention.output.LayerNorm",
    ["intermediate.dense", "output.dense"],
    "output.LayerNorm",
)
_LINEAR = {"head/dense": "classifier"}
_TAGGER = TaskHead("ForTokenClassification", "token-classification", _LINEAR)
_READER = TaskHead("ForQuestionAnswering", "question-answering", {"head/dense": "qa_outputs"})
_BERT = EncoderFamily(
    name="BERT",
    classes="Bert",
    prefix="bert.",
    body=("embeddings.", "encoder."),
    tokens=("embeddings.word_embeddings.weight",),
    table={
        "embeddings/norm": "embeddings.LayerNorm",
        **_LAYERS,
        "pooler/dense": "pooler.dense",
    },
    heads={
        **head_table("cls.predictions.transform."),
        "sentence_pair/dense": "cls.seq_relationship",
    },
    tasks={
        EncoderClassifier: TaskHead(
            "ForSequenceClassification", "text-classification", _LINEAR, pooled=True
        ),
        EncoderChooser: TaskHead("ForMultipleChoice", "multiple-choice", _LINEAR, pooled=True),
        EncoderTagger: _TAGGER,
        EncoderSpanReader: _READER,
    },
    bias=("cls.predictions.bias", "cls.predictions.decoder.bias"),
    positions="embeddings.position_embeddings.weight",
    segments="embeddings.token_type_embeddings.weight",
    output="cls.predictions.decoder.weight",
    settings=SETTINGS,
    required=_REQUIRED,
)
_ROBERTA = dataclasses.replace(
    _BERT,
    name="RoBERTa",
    classes="Roberta",
    prefix="roberta.",
    heads=head_table("lm_head.", "layer_norm"),
    tasks={
        **_BERT.tasks,
        EncoderClassifier: TaskHead(
            "ForSequenceClassification",
            "text-classification",
            {"pooler/dense": "classifier.dense", "head/dense": "classifier.out_proj"},
        ),
    },
    bias=("lm_head.bias", "lm_head.decoder.bias"),
    head_options={"activation": "gelu"},
    output="lm_head.decoder.weight",
    padding=1,
    positions_from_padding=True,
)
_DISTILBERT = EncoderFamily(
    name="DistilBERT",
    classes="DistilBert",
    prefix="distilbert.",
    body=("embeddings.", "transformer."),
    tokens=("embeddings.word_embeddings.weight",),
    table={
        "embeddings/norm": "embeddings.LayerNorm",
        **transformer_layer(
            "transformer.layer.{}.",
            [f"attention.{part}_lin" for part in ("q", "k", "v", "out")],
            "sa_layer_norm",
            ["ffn.lin1", "ffn.lin2"],
            "output_layer_norm",
        ),
    },
    heads={
        "masked_language/dense": "vocab_transform",
        "masked_language/norm": "vocab_layer_norm",
    },
    tasks={
        **{
            kind: dataclasses.replace(
                _BERT.tasks[kind],
                table={"pooler/dense": "pre_classifier", **_LINEAR},
                pooled=False,
                activation="relu",
            )
            for kind in (EncoderClassifier, EncoderChooser)
        },
        EncoderTagger: _TAGGER,
        EncoderSpanReader: _READER,
    },
    bias=("vocab_projector.bias",),
    positions="embeddings.position_embeddings.weight",
    head_dropout="seq_classif_dropout",
    output="vocab_projector.weight",
    settings={
        "hidden_dim": ("dim", 768),
        "feed_forward_dim": ("hidden_dim", 3072),
        "num_heads": ("n_heads", 12),
        "num_layers": ("n_layers", 6),
        "max_length": ("max_position_embeddings", 512),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "initializer_range": ("initializer_range", 0.02),
        "activation": ("activation", "gelu", ACTIVATIONS),
    },
    fixed={"num_segments": 0},
    required={"tie_word_embeddings": True},
)
_ALBERT = dataclasses.replace(
    _BERT,
    name="ALBERT",
    classes="Albert",
    prefix="albert.",
    table={
        "embeddings/norm": "embeddings.LayerNorm",
        "encoder/projection": "encoder.embedding_hidden_mapping_in",
        **transformer_layer(
            "encoder.albert_layer_groups.0.albert_layers.0.",
            [f"attention.{part}" for part in ("query", "key", "value", "dense")],
            "attention.LayerNorm",
            ["ffn", "ffn_output"],
            "full_layer_layer_norm",
        ),
        "pooler/dense": "pooler",
    },
    heads={**head_table("predictions."), "sentence_pair/dense": "sop_classifier.classifier"},
    bias=("predictions.bias", "predictions.decoder.bias"),
    head_dropout="classifier_dropout_prob",
    output="predictions.decoder.weight",
    settings={
        **SETTINGS,
        "hidden_dim": ("hidden_size", 4096),
        "embedding_dim": ("embedding_size", 128),
        "feed_forward_dim": ("intermediate_size", 16384),
        "num_heads": ("num_attention_heads", 64),
        "dropout": ("hidden_dropout_prob", 0.0),
        "attention_dropout": ("attention_probs_dropout_prob", 0.0),
        "activation": ("hidden_act", "gelu_new", ACTIVATIONS),
    },
    fixed={"sharing": "all"},
    required={**_REQUIRED, "num_hidden_groups": 1, "inner_group_num": 1},
)
_ELECTRA = dataclasses.replace(
    _BERT,
    name="ELECTRA",
    classes="Electra",
    prefix="electra.",
    body=("embeddings", "encoder."),
    table={
        "embeddings/norm": "embeddings.LayerNorm",
        "encoder/projection": "embeddings_project",
        **_LAYERS,
    },
    heads={
        **head_table("generator_predictions."),
        "replaced_token/dense": "discriminator_predictions.dense",
        "replaced_token/answer": "discriminator_predictions.dense_prediction",
    },
    tasks={
        EncoderClassifier: dataclasses.replace(
            _ROBERTA.tasks[EncoderClassifier], activation="gelu"
        ),
        EncoderChooser: TaskHead(
            "ForMultipleChoice",
            "multiple-choice",
            {"pooler/dense": "sequence_summary.summary", "head/dense": "classifier"},
            activation="gelu",
            activation_field="summary_activation",
        ),
        EncoderTagger: _TAGGER,
        EncoderSpanReader: _READER,
    },
    bias=("generator_lm_head.bias",),
    head_options={"activation": "gelu"},
    output="generator_lm_head.weight",
    settings={
        **SETTINGS,
        "hidden_dim": ("hidden_size", 256),
        "embedding_dim": ("embedding_size", 128),
        "feed_forward_dim": ("intermediate_size", 1024),
        "num_heads": ("num_attention_heads", 4),
    },
)
_XLM = EncoderFamily(
    name="XLM",
    classes="XLM",
    masked_class="WithLMHeadModel",
    prefix="transformer.",
    body=("embeddings", "position_emb", "lang_emb", "layer_norm", "attentions.", "ffns."),
    tokens=("embeddings.weight",),
    table={
        "embeddings/languages": Raw("lang_embeddings.weight"),
        "embeddings/norm": "layer_norm_emb",
        **transformer_layer(
            "",
            [f"attentions.{{}}.{part}_lin" for part in ("q", "k", "v", "out")],
            "layer_norm1.{}",
            ["ffns.{}.lin1", "ffns.{}.lin2"],
            "layer_norm2.{}",
        ),
    },
    bias=("pred_layer.proj.bias",),
    head_options={"transform": False},
    positions="position_embeddings.weight",
    output="pred_layer.proj.weight",
    settings={
        "hidden_dim": ("emb_dim", 2048),
        "num_heads": ("n_heads", 16),
        "num_layers": ("n_layers", 12),
        "max_length": ("max_position_embeddings", 512),
        "dropout": ("dropout", 0.1),
        "attention_dropout": ("attention_dropout", 0.1),
        "epsilon": ("layer_norm_eps", 1e-12),
        "initializer_range": ("init_std", 0.02),
    },
    fixed={"num_segments": 0},
    derived=_xlm_settings,
    underived=_xlm_fields,
    tasks={
        EncoderTagger: _TAGGER,
        EncoderSpanReader: dataclasses.replace(_READER, ending="ForQuestionAnsweringSimple"),
    },
    required={"causal": False, "asm": False, "is_encoder": True, "tie_word_embeddings": True},
    moses=True,
    padding=2,
)
# Our own blocks, by a PyTorch file of ours.
_POOLED = {
    "table": {"pooler/dense": "pooler.dense", "head/dense": "head.dense"},
    "activation_field": "pooler_activation",
}
_OWN = EncoderFamily(
    name="Macaron",
    classes="Macaron",
    prefix="macaron.",
    body=("embeddings.", "projection.", "stack."),
    tokens=("embeddings.tokens.weight",),
    table=OWN_TABLE,
    heads={
        "masked_language/dense": "masked_language.dense",
        "masked_language/norm": "masked_language.norm",
    },
    tasks={
        EncoderClassifier: TaskHead("ForSequenceClassification", "text-classification", **_POOLED),
        EncoderChooser: TaskHead("ForMultipleChoice", "multiple-choice", **_POOLED),
        EncoderTagger: TaskHead(
            "ForTokenClassification", "token-classification", {"head/dense": "head.dense"}
        ),
        EncoderSpanReader: TaskHead(
            "ForQuestionAnswering", "question-answering", {"head/dense": "head.dense"}
        ),
    },
    code=own_code,
    bias=("masked_language.bias",),
    positions="embeddings.positions.weight",
    derived=own_settings,
    underived=own_fields,
)
# By model_type.
FAMILIES: Mapping[str, EncoderFamily] = {
    "bert": _BERT,
    "distilbert": _DISTILBERT,
    "roberta": _ROBERTA,
    "xlm-roberta": dataclasses.replace(_ROBERTA, name="XLM-R", classes="XLMRoberta"),
    "albert": _ALBERT,
    "electra": _ELECTRA,
    "xlm": _XLM,
    "macaron": _OWN,
}


def read_encoder(directory: str | pathlib.Path, lower_case: bool | None = None) -> Pretrained:
    """Reads an encoder as `save_pretrained` writes it, with the heads that it has.

    BERT, DistilBERT, RoBERTa, XLM-R, ALBERT, ELECTRA (a generator or a discriminator) and XLM,
    which without the tokenizer's files comes with `ids` and no vocabulary. A classifier, tagger,
    chooser or reader of spans is one here too, see `task_heads`.

    Args:
        directory: holds `config.json`, `model.safetensors` or `pytorch_model.bin` (which need the
            package safetensors, or PyTorch) and the tokenizer's files; or a sentence-transformers
            directory around such a one.
        lower_case: whether text is lower-cased, for a WordPiece directory that does not say so.
    """
    directory = pathlib.Path(directory)
    pooled = (directory / "modules.json").is_file()
    if pooled:  # early ones keep the model in 0_Transformer
        directory /= _modules(directory)[0]["path"]
    config = ForeignConfig.of_directory(directory, FAMILIES)
    family = FAMILIES[config.get("model_type")]
    settings = family.read_settings(config)
    padding = config.number("pad_token_id", family.padding)
    vocabulary = ids = None
    languages = _languages(config)
    if not family.moses or (directory / "vocab.json").is_file():
        if family.moses:
            vocabulary, ids = read_xlm_vocabulary(directory, languages)
        else:
            vocabulary, ids = read_vocabulary(directory, lower_case)
        found = 0 if ids is None else ids[0]
        if found != padding:
            raise UserError(
                f"{config.where} has pad_token_id={padding} and its vocabulary pads with {found}: "
                "it is another model's vocabulary."
            )
    arrays = family.arrays(directory)
    if vocabulary is None and padding:
        count = len(arrays.array(*family.tokens))
        ids = np.array([padding, *np.delete(np.arange(count), padding)])
    learned = settings.get("positions", "learned") == "learned"
    positions = arrays.array(family.positions) if learned else None  # (max_length, E)
    if family.positions_from_padding:
        settings["max_length"] -= padding + 1
        positions = positions[padding + 1 :]
    parts: dict[str, Raw | np.ndarray] = {}
    if family.segments and settings["num_segments"] == 1:
        # The one segment's vector is added to every position.
        settings["num_segments"] = 0
        positions = positions + arrays.array(family.segments)
    elif family.segments:
        parts["embeddings/segments"] = Raw(family.segments)
    if learned:
        parts["embeddings/positions/table"] = positions
    table = {**parts, **family.table}
    # Kept beside the weights by some versions: the positions 0, 1, 2, ... and a row of zeros.
    repeated = (*family.bias, "position_ids", "token_type_ids")
    family = dataclasses.replace(family, table=table, repeated=repeated)
    found = None if pooled else find_head(family, config, arrays, settings)
    encoder = import_encoder(arrays, family, settings, vocabulary, ids, found)
    spoken = languages if settings.get("num_languages") else ()
    return dataclasses.replace(encoder, unread=family.check_rest(arrays), languages=spoken)


def _languages(config: ForeignConfig) -> tuple[str, ...]:
    """The languages of an XLM in the order of their ids; none where it names none."""
    numbers = config.get("lang2id") or {}
    count = config.number("n_langs", 1)
    # By their spelling: values of other types have no order.
    found = {*map(repr, numbers.values())} if isinstance(numbers, dict) else None
    if found is None or found != {*map(repr, range(len(numbers)))}:
        raise UserError(
            f"{config.where} has lang2id={numbers!r:.60}: it must number languages from 0."
        )
    if numbers and len(numbers) != count:
        raise UserError(
            f"{config.where} has n_langs={count} and {len(numbers)} languages in lang2id: "
            "restore the model's own."
        )
    return tuple(sorted(numbers, key=numbers.get))


def _modules(directory: pathlib.Path) -> list[dict]:
    """The modules of a sentence-transformers directory, each with its `path`."""
    file = directory / "modules.json"
    check_files(directory, "sentence-transformers directory", file.name)
    modules = read_json(file, list)
    if not modules or not all(isinstance(one, dict) and "path" in one for one in modules):
        raise UserError(f"{file} has a module without a path.")
    return modules


# Ours, by the flags of their `Pooling` and by the one name of its later versions.
_POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
_FLAG = "pooling_mode_"


def read_sentence_transformer(
    directory: str | pathlib.Path, lower_case: bool | None = None
) -> Pretrained:
    """Reads a sentence-transformers directory: an encoder and how it makes one vector of a text.

    Args:
        directory: holds `modules.json`, which names the folders of an encoder, of its pooling and,
            where there is one, of a normalization.
        lower_case: as for `read_encoder`.

    References: Reimers and Gurevych 2019 (Sentence-BERT), section 3.
    """
    directory = pathlib.Path(directory)
    modules = _modules(directory)
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UserError(
            f"{directory / 'modules.json'} has the modules {', '.join(kinds)}: only Transformer, "
            "Pooling and then perhaps Normalize can be read."
        )
    encoder = read_encoder(directory, lower_case)
    transformer, pooling = (directory / module["path"] for module in modules[:2])
    file = transformer / "sentence_bert_config.json"
    config = ForeignConfig(read_json(file) if file.is_file() else {}, str(file))
    if config.get("do_lower_case"):
        config.require({"do_lower_case": False})  # only a tokenizer of theirs may say so
    max_length = encoder.config.max_length
    if config.get("max_seq_length") is not None:
        max_length = min(max_length, config.number("max_seq_length"))
    return dataclasses.replace(
        encoder,
        pooling=_pooling(pooling / "config.json"),
        normalize="Normalize" in kinds,
        max_length=max_length,
    )


def _pooling(file: pathlib.Path) -> str:
    if not file.is_file():
        raise UserError(f"the pooling's {file} is missing.")
    config = read_json(file)
    flags = [name.removeprefix(_FLAG) for name in config if name.startswith(_FLAG) and config[name]]
    # One name, or several whose vectors stand side by side.
    found = config.get("pooling_mode") or flags
    found = [found] if isinstance(found, str) else list(found)
    names = {**_POOLINGS, **{name: name for name in _POOLINGS.values()}}
    if len(found) != 1 or found[0] not in names:
        raise UserError(
            f"{file} pools by {' and '.join(found) or 'nothing'}: only one of "
            f"{', '.join(_POOLINGS)} can be read."
        )
    return names[found[0]]
