"""KerasHub backbones, tokenizers and tasks that wrap macaron_tf networks and vocabularies.

    import macaron_tf
    from macaron_tf.hub.keras_hub import EncoderBackbone, task_of

    backbone = EncoderBackbone(macaron_tf.models.catalog.config("macaron_bert_base"))
    masked_lm = task_of(macaron_tf.load("runs/macaron"))
    masked_lm.save_to_preset("preset")
    classifier = keras_hub.models.TextClassifier.from_preset("preset", num_classes=2)

Import this module before KerasHub reads a preset that contains a class of this module, because the
import registers the classes with Keras.
"""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from keras.src.saving.serialization_lib import SafeModeScope  # no public name

from macaron_tf import models
from macaron_tf.errors import UserError, first_line, needed
from macaron_tf.hub.heads import unstandardized_weights
from macaron_tf.hub.keras_models import BACKBONES, import_keras_hub
from macaron_tf.hub.tokenizers.reading import read_keras_hub_vocabulary
from macaron_tf.io.paths import read_json
from macaron_tf.layers.dense import activation as activation_named
from macaron_tf.layers.dense import policy_of
from macaron_tf.layers.embeddings import TiedEmbedding
from macaron_tf.layers.heads import Pooler, Pooling
from macaron_tf.layers.recording import part_flags, set_part_flags
from macaron_tf.models.model_parts import Card, ModelParts
from macaron_tf.settings import hints_of
from macaron_tf.tasks import LabelledSettings
from macaron_tf.text.base import RECORD, PieceVocabulary, Vocabulary
from macaron_tf.variables import spec_of

with needed("macaron_tf.hub.keras_hub"):
    import keras_hub

_CHUNK = 16  # number of prompt tokens that one prefill step reads
_registered = keras.saving.register_keras_serializable(package="macaron_tf")


class _Backbone(keras_hub.models.Backbone):
    """Base class of the backbones in this module.

    The Keras configuration of a backbone contains an `EncoderConfig`. `from_preset` also accepts
    fields of the `EncoderConfig` that do not change the shapes of weights, such as `dropout=0.0`.
    """

    def __init__(
        self, config: models.EncoderConfig, tokens: TiedEmbedding, inputs, outputs, dtype, **kwargs
    ):
        self.token_embedding = tokens
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)
        self.config = config
        self.vocabulary_size = config.vocab_size

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config["config"] = keras.saving.serialize_keras_object(self.config)
        if flags := part_flags(self):
            config["trainable_parts"] = flags
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]):
        options = {**config, "config": keras.saving.deserialize_keras_object(config["config"])}
        changes = {n: options.pop(n) for n in config.keys() & hints_of(models.EncoderConfig)}
        options["config"] = dataclasses.replace(options["config"], **changes)
        flags = options.pop("trainable_parts", {})
        backbone = super().from_config(options)
        set_part_flags(backbone, flags)
        return backbone

    def default_lora_layer_names(self) -> list[str]:
        # KerasHub selects layers by name. These layers project to the attention heads.
        layers = [x for x in self._flatten_layers() if isinstance(x, keras.layers.Dense)]
        return sorted({x.name for x in layers if spec_of(x.weights[0]).axes[1:] == ("heads",)})


def _inputs(*names: str) -> dict[str, keras.KerasTensor]:
    return {name: keras.Input((None,), dtype="int32", name=name) for name in names}


@_registered
class EncoderBackbone(_Backbone):
    """Encoder and BERT's pooler with the interface of KerasHub's `BertBackbone`.

    The encoder may consist of any of macaron_tf's blocks.

    Args:
        config: configuration of the encoder. The field `summary` selects the position that the
            pooler reads.

    Call arguments:
        inputs: dict with `token_ids`, `segment_ids` and `padding_mask`, each `(B, L)` int.

    The output is a dict with `sequence_output`, `(B, L, D)`, and `pooled_output`, `(B, D)`.

    Example:
        config = macaron_tf.models.catalog.config("macaron_bert_base", vocab_size=30_522)
        backbone = EncoderBackbone(config)
        classifier = EncoderTextClassifier(backbone, num_classes=2)
    """

    def __init__(self, config: models.EncoderConfig, dtype=None, **kwargs):
        self.encoder = models.Encoder(config, dtype=dtype, name="encoder")
        self.encoder.build()
        self.pooler = Pooler(config.initializer_range, dtype=dtype, name="pooler")
        pool = Pooling("last" if config.summary == "last" else "cls", dtype=dtype, name="pool")
        inputs = _inputs("token_ids", "segment_ids", "padding_mask")
        # The copy has no implicit Keras mask. KerasHub's preprocessors pass sample weights instead.
        hidden = ops.copy(self.encoder(inputs))  # (B, L, D)
        vectors = pool(hidden, mask=inputs["padding_mask"])  # (B, D)
        outputs = {"sequence_output": hidden, "pooled_output": self.pooler(vectors[:, None])}
        super().__init__(config, self.encoder.embeddings.tokens, inputs, outputs, dtype, **kwargs)


@_registered
class LanguageModelBackbone(_Backbone):
    """Causal language model that has the interface of KerasHub's `GPT2Backbone`.

    The model may consist of any of macaron_tf's blocks. The output is the hidden states
    `(B, L, D)`. `LanguageModelCausalLM` applies the output layer.

    Args:
        config: configuration of the model, with `causal=True`.

    Call arguments:
        inputs: dict with `token_ids` and `padding_mask`, each `(B, L)` int.
    """

    def __init__(self, config: models.EncoderConfig, dtype=None, **kwargs):
        self.language_model = models.LanguageModel(config, dtype=dtype, name="language_model")
        self.language_model.build()
        encoder = self.language_model.encoder
        inputs = _inputs("token_ids", "padding_mask")
        tokens = encoder.embeddings.tokens
        super().__init__(config, tokens, inputs, ops.copy(encoder(inputs)), dtype, **kwargs)


class _Tokenizer(keras_hub.tokenizers.Tokenizer):
    """Base class of tokenizers. The tokenizer wraps a macaron_tf vocabulary.

    A preset contains the files of the vocabulary as assets. Without a `vocabulary`, `load_assets`
    reads one of `kind`, such as "wordpiece". The tokenizer can run in a TensorFlow graph. The start
    and end tokens are [CLS] and [SEP]. The string "[MASK]" is ordinary text.

    Call arguments:
        inputs: one string, which gives ids `(L,)`, or strings `(B,)`, which give ragged ids
            `(B, None)`.
    """

    def __init__(
        self, vocabulary: PieceVocabulary | None = None, kind: str | None = None, **kwargs
    ):
        super().__init__(**kwargs)
        self.built = True  # a task can be quantized only if all of its layers are built
        self.kind = vocabulary.kind if vocabulary else kind
        self.file_assets = [Vocabulary.classes[self.kind].contents_name, RECORD]
        self.vocabulary = None
        if vocabulary:
            self._set_vocabulary(vocabulary)

    def _set_vocabulary(self, vocabulary: PieceVocabulary) -> None:
        if vocabulary.cls_last:
            raise UserError("XLNet's vocabulary puts [CLS] after a text, but KerasHub before it")
        self.vocabulary = vocabulary
        self.start_token_id, self.end_token_id = vocabulary.special.begin, vocabulary.special.end
        self.pad_token_id, self.mask_token_id = vocabulary.special.pad, vocabulary.special.mask

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "kind": self.kind}

    def save_assets(self, dir_path: str) -> None:
        self.vocabulary.save(dir_path)

    def load_assets(self, dir_path: str) -> None:
        self._set_vocabulary(PieceVocabulary.load(dir_path))

    def tokenize(self, inputs):
        lines = tf.convert_to_tensor(inputs)
        rows = self.vocabulary.encode(tf.reshape(lines, [-1]))
        return rows if lines.shape.rank else rows[0]

    def detokenize(self, inputs):
        """Decodes ids `(L,)` to a string, or ids `(B, L)` to `(B,)` strings.

        The ids are a tensor, a ragged tensor or nested lists. The result is a `str` or a list of
        `str`. In a graph, the result is a string tensor.
        """
        if not isinstance(inputs, tf.Tensor | tf.RaggedTensor):
            inputs = tf.ragged.constant(inputs, tf.int32)
        single = inputs.shape.rank == 1
        lines = self.vocabulary.decode(inputs[None] if single else inputs)
        if tf.executing_eagerly():
            lines = [line.decode() for line in lines.numpy()]
        return lines[0] if single else lines

    def vocabulary_size(self) -> int:
        """Returns the number of tokens, which may be less than the number of embedding rows."""
        return self.vocabulary.pieces

    @property
    def special_token_ids(self) -> list[int]:
        return list(self.vocabulary.special.ids)


@_registered
class EncoderTokenizer(_Tokenizer):
    """Tokenizer of an encoder (see `_Tokenizer`)."""

    backbone_cls = EncoderBackbone


@_registered
class LanguageModelTokenizer(_Tokenizer):
    """Tokenizer of a language model (see `_Tokenizer`)."""

    backbone_cls = LanguageModelBackbone


class _Sized:
    """Mixin for preprocessors that sets the default of `sequence_length` in `from_preset`."""

    @classmethod
    def _add_missing_kwargs(cls, loader, kwargs):
        config = keras.saving.deserialize_keras_object(loader.config["config"]["config"])
        kwargs = super()._add_missing_kwargs(loader, kwargs)
        return {"sequence_length": config.longest or 512, **kwargs}


class _Packing(_Sized):
    """Mixin for encoder preprocessors, with `pair_separators` [SEP] tokens between two texts."""

    backbone_cls = EncoderBackbone
    tokenizer_cls = EncoderTokenizer

    def build(self, input_shape):
        super().build(input_shape)
        tokenizer = self.tokenizer
        self.packer.sep_value = [tokenizer.end_token_id] * tokenizer.vocabulary.pair_separators


@_registered
class EncoderTextClassifierPreprocessor(_Packing, keras_hub.models.TextClassifierPreprocessor):
    """Preprocessor of texts or text pairs for an `EncoderTextClassifier`.

    The arguments are the same as in `keras_hub.models.TextClassifierPreprocessor`.
    """


@_registered
class EncoderMaskedLMPreprocessor(_Packing, keras_hub.models.MaskedLMPreprocessor):
    """Preprocessor that masks random tokens, which an `EncoderMaskedLM` learns to predict.

    The arguments are the same as in `keras_hub.models.MaskedLMPreprocessor`.
    """


@_registered
class LanguageModelCausalLMPreprocessor(_Sized, keras_hub.models.CausalLMPreprocessor):
    """Preprocessor for a `LanguageModelCausalLM`. The label of each token is the next token.

    The arguments are the same as in `keras_hub.models.CausalLMPreprocessor`. `add_start_token` also
    applies to the prompts of `generate`.
    """

    backbone_cls = LanguageModelBackbone
    tokenizer_cls = LanguageModelTokenizer

    def build(self, input_shape):
        super().build(input_shape)
        if not self.add_start_token:
            self.packer.start_value = None


@_registered
class EncoderTextClassifier(keras_hub.models.BertTextClassifier):
    """Classifier of texts or text pairs with an `EncoderBackbone`.

    The arguments are the same as in `keras_hub.models.BertTextClassifier`.
    """

    backbone_cls = EncoderBackbone
    preprocessor_cls = EncoderTextClassifierPreprocessor


@_registered
class EncoderMaskedLM(keras_hub.models.MaskedLM):
    """Masked language model with an `EncoderBackbone`.

    The kernel of the output layer is the backbone's token embedding table. The inputs are the same
    as in `keras_hub.models.BertMaskedLM`.

    Args:
        preprocessor: an `EncoderMaskedLMPreprocessor`; `None` means that the inputs are ids.
        activation: activation of the head; `None` means the encoder's activation.
        epsilon: epsilon of the LayerNorm in the head; `None` means the encoder's epsilon.
    """

    backbone_cls = EncoderBackbone
    preprocessor_cls = EncoderMaskedLMPreprocessor

    def __init__(
        self,
        backbone: EncoderBackbone,
        preprocessor=None,
        activation: str | None = None,
        epsilon: float | None = None,
        **kwargs,
    ):
        config = backbone.config
        self.backbone, self.preprocessor = backbone, preprocessor
        self.activation = activation or config.activation
        self.epsilon = epsilon or config.epsilon
        self.masked_lm_head = keras_hub.layers.MaskedLMHead(
            token_embedding=backbone.token_embedding,
            intermediate_activation=activation_named(self.activation),
            layer_norm_epsilon=self.epsilon,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=config.initializer_range),
            dtype=backbone.dtype_policy,
            name="masked_lm_head",
        )
        inputs = {**backbone.input, **_inputs("mask_positions")}
        hidden = backbone(backbone.input)["sequence_output"]
        outputs = self.masked_lm_head(hidden, inputs["mask_positions"])
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "activation": self.activation, "epsilon": self.epsilon}


@_registered
class LanguageModelCausalLM(keras_hub.models.CausalLM):
    """Causal language model with a `LanguageModelBackbone` and generation by KerasHub's samplers.

    Generation caches the state of each block: keys and values, or the state of a recurrence.

    Args:
        preprocessor: a `LanguageModelCausalLMPreprocessor`; `None` means that the inputs are ids.
    """

    backbone_cls = LanguageModelBackbone
    preprocessor_cls = LanguageModelCausalLMPreprocessor

    def __init__(self, backbone: LanguageModelBackbone, preprocessor=None, **kwargs):
        self.backbone, self.preprocessor = backbone, preprocessor
        outputs = ops.copy(backbone.language_model(backbone.input))
        super().__init__(inputs=backbone.input, outputs=outputs, **kwargs)

    @tf.autograph.experimental.do_not_convert
    def generate_step(self, inputs, stop_token_ids: Sequence[int] | None = None):
        """Continues prompts up to length L, or until each row contains a generated stop token.

        Args:
            inputs: dict with `token_ids`, `(B, L)`, and `padding_mask`, `(B, L)`. The mask is False
                at the positions to generate.
            stop_token_ids: ids of the tokens that end a row; `None` means no such tokens.

        Returns:
            A dict with the keys and shapes of `inputs`. In each row, the mask is True up to and
            including the first generated stop token, and False after this token. In a row without a
            generated stop token, the mask is True everywhere.
        """
        token_ids = ops.convert_to_tensor(inputs["token_ids"])
        prompt_mask = ops.cast(inputs["padding_mask"], "bool")
        model = self.backbone.language_model
        context, cache = model.init_decode(token_ids.shape[0], 1, token_ids.shape[1])
        first_generated = ops.min(ops.sum(ops.cast(prompt_mask, "int32"), axis=-1))  # a position

        def slice_tokens(rows, index, count=1):
            return ops.slice(rows, (0, index), (ops.shape(rows)[0], count))  # (B, count)

        def next_token(prompt, cache, index):
            # The sampler's index is the position of the next token.
            inputs = (slice_tokens(prompt, index - 1), index - 1, context, cache)
            logits, cache, hidden = model.decode_step(*inputs, with_hidden=True)
            return logits[:, 0], hidden, cache  # (B, 1, V) -> (B, V)

        def read_prompts(count, state):
            """Reads tokens of the prompts, `count` at a time, before the last of the shortest."""

            def read(index, cache):
                inputs = slice_tokens(token_ids, index, count), index, context, cache
                cache = model.prefill(*inputs) if count > 1 else model.decode_step(*inputs)[1]
                return index + count, cache

            return ops.while_loop(lambda index, _: index + count < first_generated, read, state)

        # Chunks have a fixed size, because XLA cannot slice by an unknown length.
        state = ops.zeros((), "int32"), cache
        if model.can_prefill and token_ids.shape[1] > _CHUNK:
            state = read_prompts(_CHUNK, state)
        _, cache = read_prompts(1, state)
        token_ids = self.sampler(
            next=next_token,
            prompt=token_ids,
            cache=cache,
            index=first_generated,
            mask=prompt_mask,
            stop_token_ids=stop_token_ids,
            # Only the contrastive sampler uses hidden states. With other samplers, TensorFlow
            # prunes their computation from the graph.
            hidden_states=model.hidden_states({**inputs, "padding_mask": prompt_mask}),
            model=self,
        )
        mask = ops.ones_like(prompt_mask)
        if stop_token_ids is not None:
            stop_tokens = ops.convert_to_tensor(list(stop_token_ids), token_ids.dtype)
            is_stop = ops.any(ops.equal(token_ids[..., None], stop_tokens), axis=-1)
            is_stop = ops.cast(ops.logical_and(is_stop, ops.logical_not(prompt_mask)), "int32")
            # The mask includes the first stop token.
            mask = ops.equal(ops.cumsum(is_stop, axis=-1) - is_stop, 0)
        return {"token_ids": token_ids, "padding_mask": mask}


def task_of(
    model: ModelParts | keras.Model, sequence_length: int | None = None, **kwargs
) -> keras_hub.models.Task:
    """Converts a network to a KerasHub task with the same weights, task head and vocabulary.

    The network must be a classifier of whole texts, a language model, or an encoder that was
    pre-trained with masked language modelling. Other pre-training heads, such as the sentence-pair
    head, are left out.

    Args:
        model: result of `macaron_tf.load`, or a network. The task of a network without a vocabulary
            takes ids instead of text.
        sequence_length: sequence length of the preprocessor, in tokens; `None` means the network's
            maximum length, or 512 if the network has no maximum.

    Example:
        lm = task_of(macaron_tf.load("runs/gpt2"))
        lm.compile(sampler="top_p")
        print(lm.generate("The story of", max_length=64))
    """
    model = ModelParts(model) if isinstance(model, keras.Model) else model
    network, preprocessor_options, options = model.network, {}, {}
    encoders = models.PretrainingEncoder | models.EncoderClassifier
    if isinstance(network, models.LanguageModel):
        model.require_head()
        task_class, backbone = LanguageModelCausalLM, LanguageModelBackbone(network.config)
        backbone.language_model.set_weights(network.get_weights())
        preprocessor_options["add_start_token"] = model.card.starts
    elif isinstance(network, encoders) and isinstance(network.config, models.EncoderConfig):
        _check_head(model)
        task_class, backbone = EncoderMaskedLM, EncoderBackbone(network.config)
        if isinstance(network, models.EncoderClassifier):
            task_class = EncoderTextClassifier
            options = {"num_classes": network.num_classes, "dropout": network.head_dropout}
        else:
            options = {n: value for n, value in network.head_options.items() if n != "transform"}
        backbone.encoder.set_weights(network.encoder.get_weights())
        if pooler := network.pooler:
            backbone.pooler.set_weights(pooler.get_weights())
    else:
        raise UserError(f"KerasHub has no task for the network {type(network).__name__}")
    preprocessor = None
    if model.vocabulary:
        preprocessor = task_class.preprocessor_cls(
            task_class.preprocessor_cls.tokenizer_cls(model.vocabulary),
            sequence_length=sequence_length or network.config.longest or 512,
            **preprocessor_options,
        )
    task = task_class(backbone=backbone, preprocessor=preprocessor, **{**options, **kwargs})
    if task_class is EncoderTextClassifier:
        task.output_dense.set_weights(unstandardized_weights(model))
    elif task_class is EncoderMaskedLM:
        for ours, theirs in zip(network.masked_language.weights, _head_weights(task), strict=True):
            theirs.assign(ours)
    return task


def _check_head(model: ModelParts) -> None:
    """Raises a UserError if KerasHub's task has no counterpart for the head of an encoder."""
    network, settings, reason = model.network, model.settings, ""
    limits = settings.limits if isinstance(settings, LabelledSettings) else None
    if network.config.norm_type == "unbiased":
        reason = "norm_type='unbiased' (ModernBERT) needs a head without biases"
    elif isinstance(network, models.EncoderClassifier):
        if limits and limits.language not in (None, *limits.languages[:1]):
            reason = f"the language is {limits.language!r}, but a task reads the first language"
        elif network.pooler_activation != "tanh":
            reason = f"a pooler with {network.pooler_activation!r} is no pooler of KerasHub's BERT"
    elif model.card.checkpoint and not model.card.objective:
        reason = f"{model.card.checkpoint} has no masked language head"
    elif not network.head_options.get("transform", True):
        reason = "KerasHub has no masked language head without a dense layer, as in XLM"
    if reason:
        raise UserError(f"{reason}: use EncoderBackbone(config) with your own head")


def _head_weights(task: EncoderMaskedLM) -> list[keras.Variable]:
    """Returns a task's weights in the order of `MaskedLanguageHead`, without the table."""
    table_ids = {id(weight) for weight in task.backbone.token_embedding.weights}
    return [weight for weight in task.masked_lm_head.weights if id(weight) not in table_ids]


def read_preset(directory: str | os.PathLike, trust_code: bool = False) -> ModelParts:
    """Reads a KerasHub preset of a BERT, DistilBERT, ELECTRA, RoBERTa or GPT-2, or of this module.

    A preset of this module is a backbone or a task (the inverse of `task_of`). Of the other models,
    only the head of a `MaskedLM` is read (see `ModelParts.missing_head`). If their WordPiece
    tokenizer lower-cases text, the vocabulary of the result also strips accents, as BERT's own
    tokenizer does. By default, KerasHub's tokenizer keeps accents.

    Args:
        directory: folder that `save_to_preset` wrote, or a downloaded preset.
        trust_code: see `macaron_tf.load`.
    """
    folder, classes = pathlib.Path(directory), {}
    mend = "download or copy the preset again"
    for file in (folder / name for name in ("config.json", "task.json")):
        if file.is_file() or not classes:
            name = read_json(file, mend=mend, registered_name=str)["registered_name"]
            classes[file.name] = keras.saving.get_registered_object(name)
            if classes[file.name] is None:
                raise UserError(f"{file} names an unknown class {name}: import its module first")
    backbone_class, task_class = classes["config.json"], classes.get("task.json")
    is_own, cls = issubclass(backbone_class, _Backbone), task_class or backbone_class
    if not is_own:
        if backbone_class.__name__ not in BACKBONES:
            only = f"only {', '.join(BACKBONES)} can be read"
            raise UserError(f"{folder} contains a {backbone_class.__name__}, but {only}")
        is_read = issubclass(cls, keras_hub.models.MaskedLM)
        cls = cls if is_read and (folder / "task.weights.h5").is_file() else backbone_class
    options, vocabulary = {} if is_own else {"dtype": "float32"}, None
    # `from_preset` has no argument for it. KerasHub's own classes open files in no such scope.
    scope = SafeModeScope(not trust_code) if is_own else contextlib.nullcontext()
    try:
        with scope:
            model = cls.from_preset(str(directory), **options)
        if is_own and (folder / "tokenizer.json").is_file():
            vocabulary = keras_hub.models.Tokenizer.from_preset(str(directory)).vocabulary
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{directory} cannot be read ({first_line(error)}): {mend}") from error
    backbone = model if isinstance(model, keras_hub.models.Backbone) else model.backbone
    if not is_own:
        head = None if model is backbone else model.masked_lm_head
        read = import_keras_hub(backbone, head, read_keras_hub_vocabulary(folder))
        if task_class in (None, cls) or issubclass(task_class, keras_hub.models.CausalLM):
            return read
        missing = f"the head of {task_class.__name__}"
        return read.with_card(unread=("task.weights.h5",), missing_head=missing)
    if isinstance(backbone, LanguageModelBackbone):
        preprocessor = None if model is backbone else model.preprocessor
        starts = preprocessor is None or preprocessor.add_start_token
        network = backbone.language_model
        return ModelParts(network, vocabulary, card=Card(starts=starts))
    config, card, dtype = backbone.config, Card(), policy_of(backbone.encoder)
    if isinstance(model, keras_hub.models.BertTextClassifier):
        if model.activation not in (keras.activations.linear, keras.activations.softmax):
            name = keras.activations.serialize(model.activation)
            found = f"{directory} has a head with activation={name!r}"
            raise UserError(f"{found}, but only 'linear' and 'softmax' can be read")
        network = models.EncoderClassifier(config, model.num_classes, model.dropout, dtype=dtype)
        network.build()
        network.head.set_weights(model.output_dense.get_weights())
    else:
        is_masked = isinstance(model, EncoderMaskedLM)
        options = {"activation": model.activation, "epsilon": model.epsilon} if is_masked else {}
        network = models.PretrainingEncoder(config, head_options=options, pooler=True, dtype=dtype)
        network.build()
        if is_masked:
            network.masked_language.set_weights([w.numpy() for w in _head_weights(model)])
            card = Card(objective="masked_language")
    network.pooler.set_weights(backbone.pooler.get_weights())
    network.encoder.set_weights(backbone.encoder.get_weights())
    return ModelParts(network, vocabulary, card=card)
