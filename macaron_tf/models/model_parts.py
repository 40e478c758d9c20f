"""The parts of a trained model: its network, its vocabulary, and how they are used."""

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import keras

from macaron_tf.errors import UserError, needs_vocabulary
from macaron_tf.io.paths import refuse_damage
from macaron_tf.layers.heads import Pooler
from macaron_tf.layers.language_heads import ReplacedTokenHead
from macaron_tf.models import catalog
from macaron_tf.models.base import Model
from macaron_tf.models.config import (
    EncoderConfig,
    EncoderDecoderConfig,
    StackConfig,
    differing_fields,
)
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.special import SPECIAL, Special

VOCABULARY = "vocabulary"  # subfolder of a model's folder
HEADS = ("pooler", "replaced_token")  # fields with layers that are not part of the network
# Fields of `ModelParts` that `model.json` does not have under `usage`. Other parts of the folder
# store these fields, or the values are valid only in one folder or process.
_NOT_IN_USAGE = (
    "network",
    "vocabulary",
    "unread_tokenizer",
    "special",
    "name",
    "checkpoint",
    "recipe",
    "results",
    *HEADS,
)


@dataclasses.dataclass(frozen=True, eq=False)
class ModelParts:
    """A trained network, its vocabulary, and what tasks and writers need to know of them.

    Readers of the hub return these parts, and writers take them. `Pretrained` adds the methods.

    Attributes:
        network: trained network of a run, or a network converted from another library. A network
            with a task head belongs to the class that fine-tuning on the task creates, such as
            `EncoderClassifier`. An encoder without a task head is a `PretrainingEncoder`.
        model: name of a model in the catalog, from which the network may differ in some settings
            (see `model_options`). "" means that the constructor chooses the name from the
            configuration. The name stays "" if the catalog has no such model.
        objective: name of the pre-training objective, or `None`. For a `LanguageModel`, `None`
            becomes "causal_language".
        vocabulary: vocabulary that tokenizes text for the network. `None` means that the tokenizer
            is missing or not supported.
        special: ids of the special tokens. With a vocabulary, these are the vocabulary's.
        unread: names of weights in the checkpoint that were not read, such as weights of other
            heads.
        missing_head: head that `predict` would need, but that was not read from the checkpoint,
            such as "lm_head.weight". "" means that no head is missing.
        unread_tokenizer: why the tokenizer beside the weights was not read; "" if it was.
        pooler: pooler over [CLS] that is not part of the network, or `None`.
        replaced_token: head of an ELECTRA discriminator, which maps hidden states `(B, L, D)` to
            logits `(B, L)`. `None` means no such head.
        has_masked_language: whether the checkpoint had weights for the masked language model head.
            Otherwise the head has its initial weights.
        starts: whether a language model can generate text without a prompt, after [CLS] alone.
        sentinels: number of T5's sentinel tokens, whose ids follow the ids of the vocabulary.
        ends: keyword arguments with which a language model or encoder-decoder constructs its
            `TextGenerator` or `SequenceGenerator`. The arguments set the token ids that precede a
            source and an answer, and that end a text. An empty dict means the defaults.
        generation: generation settings of a model from transformers, with that library's ids. The
            model is saved with these settings for transformers again.
        answers: keyword arguments with which a fine-tuned encoder-decoder constructs its
            `TaskGenerator`. The arguments set the task, the maximum lengths, and the token ids that
            precede a source and an answer.
        pooling: pooling of a sentence encoder: `"cls"`, `"mean"` or `"max"`. Mean and max pooling
            include [CLS] and [SEP].
        normalize: whether a sentence encoder scales its vectors to unit length.
        max_length: maximum row length of a sentence encoder or classifier, in tokens. Longer texts
            are truncated.
        name: short name of the model in tables.
        checkpoint: name of the checkpoint with the weights. For another library's model, the value
            is the argument of `load`.
        optimizer: name of the optimizer that trained the network, or `None` if unknown.
        trained_length: maximum row length in training, in tokens; `None` if unknown.
        languages: names of the languages, in the order of the language embeddings.
        language: language of a classifier's texts. `None` means the first language.
        labels: class names of a classifier or tagger, class 0 first; empty if unknown.
        labelled: task of a fine-tuned model, with the keys `task` (fields of `Task`) and `limits`
            (fields of `Limits`).
        decoding: beam search settings of a translator, as fields of `BeamSearchConfig`.
        license: license of the weights as an identifier of the Hugging Face hub; "" if unknown.
        recipe: content of the run's recipe.json.
        unlisted: names of recipe settings that the model card omits, because they do not affect the
            network. A name that ends in a dot matches every name with this prefix.
        results: results of a run. `step` and `metrics` are from the validation of the weights.
            `scores` maps the file name of each evaluation to its metrics. `warning` says why the
            expected weights were not read.
    """

    network: keras.Model
    model: str = ""
    objective: str | None = None
    vocabulary: Any = None
    special: Special = SPECIAL
    unread: tuple[str, ...] = ()
    pooler: Pooler | None = None
    replaced_token: ReplacedTokenHead | None = None
    has_masked_language: bool = False
    missing_head: str = ""
    unread_tokenizer: str = ""
    starts: bool = True
    sentinels: int = 0
    ends: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    answers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pooling: str | None = None
    normalize: bool = False
    max_length: int | None = None
    name: str = ""
    checkpoint: str = ""
    optimizer: str | None = None
    trained_length: int | None = None
    languages: tuple[str, ...] = ()
    language: str | None = None
    labels: tuple[str, ...] = ()
    labelled: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    decoding: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    license: str = ""
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
    results: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.license and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", self.license):
            raise UserError(f"license={self.license!r} is not a license identifier of the hub")
        if self.vocabulary:
            object.__setattr__(self, "special", self.vocabulary.special)
        elif isinstance(self.network, Model) and isinstance(self.config, StackConfig):
            special = dataclasses.replace(self.special, pad=self.config.pad_id)
            object.__setattr__(self, "special", special)
        if isinstance(self.network, Model) and not self.model:
            config, name = self.network.config, ""
            if isinstance(config, EncoderDecoderConfig):
                name = "transformer_base"
            elif isinstance(config, EncoderConfig):
                name = "gpt2_base" if config.causal else "bert_base"
            object.__setattr__(self, "model", name)
        if isinstance(self.network, LanguageModel) and self.objective is None:
            object.__setattr__(self, "objective", "causal_language")

    @property
    def config(self):
        """Configuration of the network."""
        return self.network.config

    @property
    def encoder(self) -> Encoder:
        """Encoder of the network, or the network itself if it is an encoder."""
        return self.network if isinstance(self.network, Encoder) else self.network.encoder

    @property
    def model_options(self) -> tuple[tuple[str, Any], ...]:
        """(field, value) pairs of `config` that differ from the catalog model `model`."""
        catalog_config = catalog.config(self.model, vocab_size=self.config.vocab_size)
        return tuple(sorted(differing_fields(self.config, catalog_config).items()))

    @property
    def heads(self) -> dict[str, keras.layers.Layer]:
        """The layers in `HEADS` that the model has."""
        return {name: getattr(self, name) for name in HEADS if getattr(self, name)}

    def record(self) -> dict[str, Any]:
        """Returns the content of `model.json`, from which `read_model` builds these parts again."""
        serialized = keras.saving.serialize_keras_object
        return {
            "kind": self.recipe.get("kind", ""),
            "network": serialized(self.network),
            "heads": {name: serialized(head) for name, head in self.heads.items()},
            "vocabulary": VOCABULARY if self.vocabulary else None,
            "special": dataclasses.asdict(self.special),
            "usage": {name: getattr(self, name) for name in USAGE},
            "results": self.results,
        }

    def refuse_damage(self) -> contextlib.AbstractContextManager[None]:
        """Converts errors about the content of `model.json` in a `with` block to a `UserError`."""
        return refuse_damage(f"{self.name}/model.json", "save or train the model again")

    def require_floats(self) -> None:
        """Raises a UserError if the weights are quantized instead of float."""
        if any(layer.quantization_mode for layer in self.network._flatten_layers()):
            raise UserError(f"{self.name or self.checkpoint} is quantized: give the original")

    def require_vocabulary(self) -> None:
        """Raises a UserError if the model has no vocabulary."""
        if self.vocabulary is None and self.checkpoint.endswith(".keras"):
            raise needs_vocabulary(self.checkpoint)
        if self.vocabulary is None:
            lack = f"{self.name or self.checkpoint or 'the model'} has no vocabulary"
            if why := self.unread_tokenizer:
                raise UserError(f"{lack}, because {why}")
            raise UserError(f"{lack}: pass `vocabulary=`, or put the tokenizer's files beside it")

    def require_head(self) -> None:
        """Raises a UserError if the model's head was not read (see `missing_head`)."""
        if self.missing_head:
            name, init = self.name or self.checkpoint, self.checkpoint or self.name
            raise UserError(
                f"{name} makes no predictions from texts, because {self.missing_head} was not "
                f"read: fine-tune it by `macaron train finetune:TASK` or `text_to_text:TASK` with "
                f"--init {init}"
            )


# Names of the fields that model.json stores unchanged under `usage`.
USAGE = tuple(f.name for f in dataclasses.fields(ModelParts) if f.name not in _NOT_IN_USAGE)
