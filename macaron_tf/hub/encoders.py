"""Rules for the encoders of another library: the reader and the writer of their folders."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from macaron_tf import models
from macaron_tf.hub import family
from macaron_tf.hub.arrays import Arrays, Raw, Table, assign_weights, layer_state, padded_rows
from macaron_tf.hub.heads import HEADED, ReadHead, TaskHead, head_state
from macaron_tf.hub.sentence_transformers import sentence_files
from macaron_tf.hub.tokenizers.writing import tokenizer_files
from macaron_tf.models.model_parts import Card, ModelParts
from macaron_tf.objectives import PrefixLanguageObjective
from macaron_tf.special import Special
from macaron_tf.tasks.embedding import SentenceSettings
from macaron_tf.text import PieceVocabulary

_UNUSUAL = (models.GeneratorDiscriminator, models.SiameseEncoder)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFamily(family.Family):
    """Conversion rules for one type of encoder, such as Hugging Face's "bert".

    Some encoders lack a part, such as segment embeddings. An attribute that names this part is then
    `None` or empty.

    Attributes:
        heads: mapping of weight names for the pre-training heads. A model may lack any of these
            heads, and also the pooler in `table`.
        masked_class_suffix: suffix of the class name for masked language modelling, such as
            "ForMaskedLM".
        positions, segments: names of the position and the segment embeddings, whose values
            `read` may change. `table` has no entries for embeddings that are named here.
        bias: possible names of the masked language head's bias.
        head_options: constructor arguments of the masked language head that differ from the
            encoder's settings, such as `activation`.
        padding_id: id of the padding token if `config.json` lacks the field `pad_token_id`.
        checks_padding: whether `pad_token_id` must be the padding's id in the vocabulary.
        positions_from_padding: whether position embeddings start at row `pad_token_id + 1` of their
            table, as in RoBERTa.
    """

    networks = (models.Encoder, models.PretrainingEncoder, *_UNUSUAL, *HEADED)
    catalog: str = "bert_base"
    heads: Table = dataclasses.field(default_factory=dict)
    masked_class_suffix: str = "ForMaskedLM"
    positions: str = ""
    segments: str | None = None
    bias: tuple[str, ...] = ()
    head_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    padding_id: int = 0
    checks_padding: bool = False
    positions_from_padding: bool = False

    def read(self, folder: family.ModelFolder) -> ModelParts:
        config, settings = folder.config, self.read_settings(folder.config)
        padding = config.number("pad_token_id", self.padding_id)
        vocabulary, arrays = self.vocabulary(folder), self.arrays(folder)
        if vocabulary and self.checks_padding and vocabulary.special.pad != padding:
            known = f"the tokenizer's {vocabulary.special.pad}"
            raise config.refusal(f"pad_token_id={padding}", known)
        if self.positions_from_padding:
            settings["position_offset"] = padding + 1
            settings["max_length"] -= padding + 1
        head = self.find_head(config, arrays, settings)
        return self.convert(arrays, settings, vocabulary, padding, head)

    def convert(
        self,
        arrays: Arrays,
        settings: Mapping[str, Any],
        vocabulary: PieceVocabulary | None,
        pad_id: int = Special.pad,
        task_head: ReadHead | None = None,
    ) -> ModelParts:
        """Converts another library's encoder to a macaron_tf model.

        Args:
            settings: fields of an `EncoderConfig` except `vocab_size`.
            pad_id: id of padding if there is no vocabulary.
            task_head: task head of a fine-tuned encoder. `None` means that the encoder is converted
                with its pre-training heads instead. Without weights for the masked language head,
                the result has no objective, so that it fills no masks.
        """
        tokens = arrays.array(*self.tokens)  # (V', E)
        special = family.fitted(vocabulary, Special(pad=pad_id, rows=len(tokens)), tokens)
        size = (vocabulary or special).size
        settings = {"vocab_size": size, "pad_id": special.pad, **settings}
        table = {**self.whole_table(), **self.heads, "tokens/table": padded_rows(size)(tokens)}
        objective = None
        if task_head:
            network = family.build_model(task_head.network_class, settings, **task_head.options)
            assign_weights(network, arrays, {**table, **task_head.table})
        else:
            network, objective = self.pretraining_network(arrays, settings, table)
        # Some versions also save two buffers: the positions 0, 1, 2, ..., and a row of zeros.
        ignored = (*self.bias, "position_ids", "token_type_ids")
        kernel = f"{self.bias[-1].removesuffix('bias')}weight"  # of the masked language head
        unread = self.check_unread(arrays, kernel, ignored)
        card = Card(model=self.catalog, objective=objective, special=special, unread=unread)
        return ModelParts(network, vocabulary, task_head and task_head.settings, card)

    def whole_table(self, **options) -> dict[str, Any]:
        """Returns `table` with entries for embeddings; `options` are those of the positions."""
        segments = {"embeddings/segments": Raw(self.segments)} if self.segments else {}
        positions = {"embeddings/positions/table": Raw(self.positions, **options)}
        return {**segments, **positions, **self.table}

    def pretraining_network(
        self, arrays: Arrays, settings: Mapping[str, Any], table: Table
    ) -> tuple[keras.Model, str | None]:
        """Builds the network for a model without a task head, and returns its objective, too."""
        bias = next(filter(arrays.has, self.bias), None)
        if bias:
            pad = padded_rows(settings["vocab_size"], is_bias=True)
            table = {**table, "masked_language/bias": Raw(bias, transform=pad)}
        heads = ("pooler", "sentence_pair", "replaced_token")
        found = {name: arrays.has_layer(table.get(f"{name}/dense")) for name in heads}
        found["sentence_pair"] &= found["pooler"]
        options = {**found, "head_options": self.head_options if bias else None}
        network = family.build_model(models.PretrainingEncoder, settings, **options)
        assign_weights(network, arrays, table, () if bias else ("masked_language",))
        return network, "masked_language" if bias else None

    def missing_part(self, model: ModelParts) -> str:
        network, network_class = model.network, type(model.network)
        if isinstance(network, HEADED) and network_class not in self.tasks:
            return f"the head of {network_class.__name__}"
        if activation := self.other_activation(network):
            return f"pooler_activation={activation!r}"
        if _replaced_token_head(model) and "replaced_token/dense" not in self.heads:
            return "a replaced token detection head"
        if not _has_masked_head(model):
            return ""
        config = model.config
        # The options that affect the head's logits.
        defaults = {"activation": config.activation, "epsilon": config.epsilon, "transform": True}
        ours, theirs = {**defaults, **network.head_options}, {**defaults, **self.head_options}
        differing = [name for name in defaults if ours[name] != theirs[name]]
        return ", ".join(f"the masked language head's {name}={ours[name]!r}" for name in differing)

    def write(self, model: ModelParts) -> family.HuggingFaceFolder:
        """Converts an encoder, with or without a task head, to the files of a Hugging Face model.

        ELECTRA's generator is left out, and so are a sentence-pair head and a span-boundary head if
        the Hugging Face model lacks such a head.
        """
        network, config, head = model.network, model.config, self._written_head(model)
        rows, is_bare = family.kept_rows(model), head.class_suffix == "Model"
        sentences = model.settings if isinstance(model.settings, SentenceSettings) else None
        pooled = network if isinstance(network, models.SiameseEncoder) else sentences
        is_pooled = pooled is not None and is_bare
        files = self.written_tokenizer(model) if model.vocabulary else {}
        if is_pooled:
            length = (sentences and sentences.max_length) or config.longest
            files |= sentence_files(pooled.pooling, pooled.normalize, config.hidden_dim, length)
        return family.HuggingFaceFolder(
            config=self._written_config(model, head, len(rows)),
            state=self._state(model, head, rows, "" if is_bare else self.prefix),
            pipeline="sentence-similarity" if is_pooled else head.pipeline,
            library="sentence-transformers" if is_pooled else "transformers",
            files=files,
            notes=tuple(self._notes(model, head)),
        )

    def written_tokenizer(self, model: ModelParts) -> dict[str, bytes]:
        length, has_segments = model.config.longest, model.config.num_segments > 1
        return tokenizer_files(model.vocabulary, max_length=length, has_segments=has_segments)

    def _written_head(self, model: ModelParts) -> TaskHead:
        """Returns the Hugging Face model class for a network, with or without a head."""
        if isinstance(model.network, HEADED):
            return self.tasks[type(model.network)]
        if _replaced_token_head(model):
            return TaskHead("ForPreTraining", "", {})
        if _has_masked_head(model):
            has_pair = bool(model.network.sentence_pair) and "sentence_pair/dense" in self.heads
            suffix = "ForPreTraining" if has_pair else self.masked_class_suffix
            return TaskHead(suffix, "fill-mask", {}, has_pooler=has_pair)
        has_pooler = "pooler/dense" in self.table
        return TaskHead("Model", "feature-extraction", {}, has_pooler=has_pooler)

    def _notes(self, model: ModelParts, head: TaskHead) -> Iterator[str]:
        network = model.network
        if isinstance(network, models.GeneratorDiscriminator):
            yield "the generator is left out, because ELECTRA's encoder is the discriminator"
        if _has_masked_head(model):
            if network.sentence_pair and not head.has_pooler:
                yield f"the sentence-pair head is left out, because {self.name} has no such head"
            if network.span_boundary:
                yield f"the span-boundary head is left out, because {self.name} has no such head"

    def _written_config(self, model: ModelParts, head: TaskHead, rows: int) -> dict[str, Any]:
        special = model.special
        fields = self.written_fields(model.config, self.class_name(head.class_suffix), rows)
        if self.segments:
            # Hugging Face's models have at least one segment. An encoder without segments gets a
            # single segment embedding of zeros.
            fields["type_vocab_size"] = max(model.config.num_segments, 1)
        if self.positions_from_padding:
            fields["max_position_embeddings"] += special.pad + 1
        fields["pad_token_id"] = special.pad
        if model.vocabulary and special.rows is None:
            fields |= {"bos_token_id": special.begin, "eos_token_id": special.end}
        if isinstance(model.network, HEADED):
            fields |= self.head_fields(model)
        return fields

    def _state(
        self, model: ModelParts, head: TaskHead, rows: np.ndarray, prefix: str
    ) -> dict[str, np.ndarray]:
        network, config = model.network, model.config
        offset = model.special.pad + 1 if self.positions_from_padding else 0

        def positions(array: np.ndarray) -> np.ndarray:
            if offset == config.position_offset:
                return array
            return np.pad(array[config.position_offset :], ((offset, 0), (0, 0)))

        table = {
            "tokens/table": Raw(self.tokens[0], inverse=lambda table: table[rows]),
            "masked_language/bias": Raw(self.bias[0], inverse=lambda bias: bias[rows]),
            **self.whole_table(inverse=positions),
            **self.heads,
        }
        state = layer_state(model.encoder, table, prefix)
        if self.segments and not config.num_segments:
            state[prefix + self.segments] = np.zeros((1, config.embedding_width), "float32")
        if isinstance(network, HEADED):
            state |= head_state(model, head.table)
        if head.has_pooler and network.pooler:
            state |= layer_state(network.pooler, table, prefix)
        if replaced_token_head := _replaced_token_head(model):
            state |= layer_state(replaced_token_head, table)
        elif _has_masked_head(model):
            state |= layer_state(network.masked_language, table)
            if head.has_pooler:
                state |= layer_state(network.sentence_pair, table)
        return state


def _has_masked_head(model: ModelParts) -> bool:
    """Returns whether the network has a trained masked language head."""
    is_trained = model.card.objective not in (None, PrefixLanguageObjective.name)
    return isinstance(model.network, models.PretrainingEncoder) and is_trained


def _replaced_token_head(model: ModelParts) -> keras.layers.Layer | None:
    """Returns the head for replaced token detection, as in ELECTRA."""
    network = model.network
    has_head = isinstance(network, models.GeneratorDiscriminator | models.PretrainingEncoder)
    return network.replaced_token if has_head else None


def head_table(prefix: str, norm: str = "LayerNorm") -> Table:
    """Builds the mapping of names for a masked language head, `prefix` before dense and norm."""
    return {"masked_language/dense": f"{prefix}dense", "masked_language/norm": prefix + norm}
