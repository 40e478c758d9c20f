"""`Pretrained`: a trained network with its vocabulary and its task."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
from etils import epath

from macaron_tf.data.example_batches import ExampleBatches
from macaron_tf.data.tasks.definitions import get_task
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.data.tasks.own_tables import TableSettings
from macaron_tf.engines.accuracy import Accuracy
from macaron_tf.engines.certificate import Certificate
from macaron_tf.engines.graph import TaskGraph, columns_of
from macaron_tf.engines.lite_decoding import LiteDecoder, convert_decoder
from macaron_tf.engines.lite_writer import PRECISIONS, convert_to_lite
from macaron_tf.engines.saved_model import WRITERS, write_version
from macaron_tf.errors import UserError, check_choice
from macaron_tf.io import paths
from macaron_tf.io.code_files import take_code
from macaron_tf.io.hub import HUB, check_login, push
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
from macaron_tf.models.model_card import USE_OF_EXPORT, CardFacts, model_card, use_of_folder
from macaron_tf.models.tasks import CausalClassifier, EncoderClassifier
from macaron_tf.settings import Settings
from macaron_tf.tasks import Decoding, Limits, TaskKind, labelled, task_of
from macaron_tf.tasks.labelled import embeds_languages
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.special import SPECIAL, Special
from macaron_tf.training import build_fit_model, checkpoints
from macaron_tf.training.config import fine_tuning
from macaron_tf.training.locations import HUGGING_FACE, RECIPE
from macaron_tf.training.state import require_disk_space, save_weights, weight_table

VOCABULARY = "vocabulary"
FORMATS = ("weights.h5", "safetensors", HUGGING_FACE)  # formats of `save_pretrained`
HEADS = ("pooler", "replaced_token")  # fields with layers that are not part of the network
# Fields of `Pretrained` that `model.json` does not have under `usage`. Other parts of the folder
# store these fields, or the values are valid only in one folder or process.
_NOT_IN_USAGE = (
    "network",
    "vocabulary",
    "special",
    "name",
    "checkpoint",
    "lite",
    "recipe",
    "results",
    *HEADS,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
    """A trained network, its vocabulary and its task.

    Example:
        model = macaron_tf.load("runs/rte")
        model.predict([("Two men sleep.", "Men sleep.")])  # a list with one answer

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
        lite: LiteRT weight type; see `with_lite`. `None` means that `predict` uses TensorFlow.
    """

    network: keras.Model
    model: str = ""
    objective: str | None = None
    vocabulary: PieceVocabulary | None = None
    special: Special = SPECIAL
    unread: tuple[str, ...] = ()
    pooler: Pooler | None = None
    replaced_token: ReplacedTokenHead | None = None
    has_masked_language: bool = False
    missing_head: str = ""
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
    lite: str | None = None

    def __post_init__(self):
        if self.license and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", self.license):
            raise UserError(
                f"license={self.license!r} is not a license identifier of the hub, such as mit"
            )
        if self.vocabulary:
            object.__setattr__(self, "special", self.vocabulary.special)
        elif isinstance(self.network, Model) and isinstance(self.config, StackConfig):
            special = dataclasses.replace(self.special, pad=self.config.pad_id)
            object.__setattr__(self, "special", special)
        if isinstance(self.network, Model) and not self.model:
            object.__setattr__(self, "model", _catalog_name(self.network.config))
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

    def __repr__(self) -> str:
        description = type(self.network).__name__
        if isinstance(self.network, Model):
            description += f" on {catalog.sized_name(self.model, dict(self.model_options))}"
        weights = f"{self.network.count_params():,} weights"
        return f"<Pretrained {self.name or 'model'}: {description}, {weights}>"

    @functools.cached_property
    def task(self) -> TaskKind:
        """Task that the model was trained for."""
        return task_of(self)

    def _graph(self, **options: Any) -> TaskGraph:
        """Returns the cached `TaskGraph` of the task with `options` of `TaskKind.with_options`."""
        key = tuple(sorted(options.items()))
        if key not in self._graphs:
            task = self.task.with_options(**options) if key else self.task
            if self.lite and isinstance(task, Decoding):
                self._graphs[key] = TaskGraph(task.with_decoder(self._lite_decoder))
            else:
                lite_graph = convert_to_lite(TaskGraph(task), self.lite) if self.lite else None
                self._graphs[key] = TaskGraph(task, lite_graph)
        return self._graphs[key]

    @functools.cached_property
    def _graphs(self) -> dict[tuple, TaskGraph]:
        return {}

    @functools.cached_property
    def _lite_decoder(self) -> LiteDecoder:
        return convert_decoder(self.network, self.lite)

    def with_lite(self, precision: str = "fp32") -> Self:
        """Returns a copy of this model whose `predict` runs small requests in LiteRT.

        In LiteRT, a small request can take a third of the time that it takes in TensorFlow. If the
        model generates text, the copy runs all requests in LiteRT, also requests of `stream`.

        LiteRT is not the default, because the first request converts the network. The conversion
        takes seconds, or a minute for GPT-2 base. Changes of the network's weights after the
        conversion do not affect the copy.

        Args:
            precision: weight type, `"fp32"` or `"int8"`. With int8 matrices, predictions can be
                twice as fast as with `"fp32"`, and probabilities differ by about 1e-3.
        """
        check_choice("precision", precision, PRECISIONS)
        return dataclasses.replace(self, lite=precision)

    def predict(self, *texts: Any, **options: Any) -> Any:
        """Runs the model's task on texts, and returns the answers.

        Exported models and servers return answers in the same form.

        Args:
            texts: one argument for each text input in `model.task.texts`. An argument is a string
                or an iterable of strings, such as a list, an array, a pandas column or a
                `tf.data.Dataset`. Alternatively, a single argument holds all examples: an iterable
                of tuples or dictionaries of texts.
            options: options of the task, such as `temperature` or `n_best`.

        Returns:
            A list with a plain Python value for each example, such as a string or a dictionary. If
            the input is a single example that is not in an iterable, the result is the value
            itself.
        """
        columns, is_single = columns_of(self.task.texts, texts)
        task_options = {name: options.pop(name) for name in self.task.takes if name in options}
        graph = self._graph(**task_options)
        one_at_a_time = self.lite and isinstance(graph.task, Decoding)
        with self._lite_decoder.alone() if one_at_a_time else contextlib.nullcontext():
            answers = graph.answer(columns, **options)
        return answers[0] if is_single else answers

    def stream(self, text: str, **options: Any) -> Iterator[str]:
        """Yields the answer to one text in parts, each as soon as it is generated.

        The options are those of generation, such as `temperature` and `seed`, except `num_samples`.
        """
        return self._graph().task.stream(text, **options)

    def score(self, *texts: Any) -> Any:
        """Computes the log-probability of each text, or of each target given its source.

        The texts of a language model, or the sources and targets of a translator, have the forms
        that `predict` accepts.

        Returns:
            A list with a dictionary for each text or target, or the dictionary itself for a single
            example. `log_probs` is the natural logarithm of the probability, and `tokens` is the
            number of tokens.
        """
        signatures = self.task.functions()
        names = signatures["score"][1] if "score" in signatures else ("text",)
        columns, is_single = columns_of([*names], texts)
        if "score" in signatures:
            result = self._graph().answer(columns, "score")
        else:
            result = self.task.likelihoods(*columns)
        return result[0] if is_single else result

    def export(
        self,
        path: str | os.PathLike,
        version: int | None = None,
        bfloat16: bool = False,
        lite: str | None = None,
        formats: Sequence[str] = (),
        check: str | None = None,
        **options: Any,
    ) -> epath.Path:
        """Writes a SavedModel that includes the vocabulary and gives the same answers as `predict`.

        A server of the SavedModel needs tensorflow and tensorflow_text, but not this library. This
        method also opens every written file and compares its outputs with the network; see
        `macaron_tf.engines.certificate`.

        Args:
            path: folder of the model, which gets a subfolder for each version. TensorFlow Serving
                can watch this folder.
            version: version number. `None` means the greatest version in the folder plus 1, or 1
                in a new folder.
            bfloat16: whether the dense layers of the SavedModel compute in bfloat16; see
                `TaskGraph.in_bfloat16`.
            lite: weight type of an additional LiteRT file, `"fp32"` or `"int8"`; see `with_lite`.
                This project's server uses the file for small requests. `None` means no such file.
            formats: additional formats, `"onnx"` or `"openvino"` or both. Each format has its own
                folder inside the version. The folder contains the network without the vocabulary,
                so the network maps token ids to float32 outputs.
            check: source of labelled examples, such as `"tsv:dev.tsv"`, on which the network and
                each file are scored; see `Accuracy`.
            options: options of the task, such as `n_best`.
        """
        for name in formats:
            check_choice("formats", name, [*WRITERS])
        task = self.task.with_options(**options) if options else self.task
        graph = TaskGraph(task)
        record = {"run": self.name, "checkpoint": self.checkpoint, **task.facts()}
        accuracy = Accuracy(task, check) if check else None
        certificate = Certificate(task, accuracy)  # before the policy changes
        in_bfloat16 = graph.in_bfloat16(self.checkpoint or self.name)
        with in_bfloat16 if bfloat16 else contextlib.nullcontext():
            return write_version(
                graph, record, path, version, lite, formats, certificate, self._card(USE_OF_EXPORT)
            )

    @property
    def model_options(self) -> tuple[tuple[str, Any], ...]:
        """(field, value) pairs of `config` that differ from the catalog model `model`."""
        catalog_config = catalog.config(self.model, vocab_size=self.config.vocab_size)
        return tuple(sorted(differing_fields(self.config, catalog_config).items()))

    def require_floats(self) -> None:
        """Raises a UserError if the weights are quantized instead of float."""
        if any(layer.quantization_mode for layer in self.network._flatten_layers()):
            raise UserError(
                f"{self.name or self.checkpoint} is quantized: give the model before quantization"
            )

    def require_head(self) -> None:
        """Raises a UserError if the model's head was not read (see `missing_head`)."""
        if self.missing_head:
            name, init = self.name or self.checkpoint, self.checkpoint or self.name
            raise UserError(
                f"{name} makes no predictions from texts, because {self.missing_head} was not "
                f"read: fine-tune it by `macaron train finetune:TASK` or `text_to_text:TASK` with "
                f"--init {init}"
            )

    def classifier(
        self, num_classes: int, head_dropout: float = 0.1, **changes
    ) -> EncoderClassifier | CausalClassifier:
        """Builds a classifier from this encoder and its pooler, with a new output layer.

        If the checkpoint has no pooler, or a pooler with other layers, the classifier's pooler has
        its initial weights. The classifier of a language model, such as GPT-2 or Llama, has no
        pooler. It reads the last token of a text.

        Args:
            num_classes: number of classes, or 1 for regression.
            head_dropout: dropout rate of the pooled vector, from 0 to 1.
            changes: new values for fields of `EncoderConfig` that do not affect the shapes of
                weights, such as `dropout`.
        """
        if not (isinstance(self.network, Model) and isinstance(self.config, EncoderConfig)):
            raise UserError(
                f"{self.name or self.checkpoint} is no encoder, which a classifier needs: load one"
            )
        config = dataclasses.replace(self.config, **changes)
        if config.splittings != self.config.splittings:
            raise UserError(f"scheme={config.scheme!r} does not fit the weights: leave scheme out")
        self.require_floats()
        if config.causal and config.summary == "first":
            causal_classifier = CausalClassifier(config, num_classes, head_dropout)
            causal_classifier.build()
            causal_classifier.encoder.set_weights(self.encoder.get_weights())
            if language_head := self.network.language_head:
                causal_classifier.language_head.set_weights(language_head.get_weights())
            return causal_classifier
        pooler = self.network.pooler or self.pooler
        classifier = EncoderClassifier(
            config, num_classes, head_dropout, pooler and pooler.activation_argument
        )
        if pooler and not classifier.pooler.is_like(pooler):
            pooler, classifier = None, EncoderClassifier(config, num_classes, head_dropout)
        classifier.build()
        classifier.encoder.set_weights(self.encoder.get_weights())
        if pooler:
            classifier.pooler.set_weights(pooler.get_weights())
        return classifier

    def fine_tune(
        self,
        texts: Iterable[Any],
        labels: Iterable[Any],
        epochs: int = 3,
        learning_rate: float = 5e-5,
        batch_size: int = 32,
        max_length: int = 128,
        seed: int = 1,
    ) -> "Pretrained":
        """Fine-tunes this encoder or language model to classify or rate texts; returns that model.

        The optimizer is AdamW with BERT's hyperparameters (see `fine_tuning`). The learning rate
        rises linearly in the first 10% of the updates and then decays linearly to 0. In contrast to
        this method, the command `macaron train finetune:TASK` can also validate, resume runs, and
        fine-tune for tagging, questions and multiple choice.

        Args:
            texts: training texts, or pairs of texts as tuples.
            labels: class name of each text or pair, or its score as a float.
            max_length: maximum row length in tokens, including special tokens. Longer texts are
                truncated. The network's own maximum also applies.
            seed: random seed for initial weights, shuffling and dropout.

        Example:
            model = macaron_tf.load("hugging-face:bert-base-uncased")
            model = model.fine_tune(["Fine.", "Late again."], ["praise", "complaint"])
            model.predict(["It came late."])
        """
        examples, labels = [*texts], [*labels]
        has_pairs = bool(examples) and isinstance(examples[0], tuple | list | dict)
        columns, _ = columns_of(("first", "second") if has_pairs else ("text",), [examples])
        has_scores = all(isinstance(label, float | np.floating) for label in labels)
        names = labels if has_scores else [*map(str, labels)]
        classes = tuple(sorted({*names}))
        if len(examples) != len(labels) or len(classes) < 2:
            raise UserError(
                f"the numbers of texts ({len(examples)}), labels ({len(labels)}) and distinct "
                f"labels ({len(classes)}) do not fit: give each text a label, and at least two "
                "classes or scores"
            )
        keras.utils.set_random_seed(seed)
        table = TableSettings(text=("text",), text_b=("second",) if has_pairs else ())
        values = np.array(names, np.float32) if has_scores else np.searchsorted(classes, names)
        if has_scores:
            moments = {"mean": float(values.mean()), "deviation": float(values.std())}
            table, classes = dataclasses.replace(table, **moments), ()
        table = dataclasses.replace(table, classes=classes)
        definition = table.described(get_task("regress" if has_scores else "classify", own=True))
        network = self.classifier(len(classes) or 1)
        if network.language_head:
            network.language_head.trainable = False  # the loss does not depend on this head
        limits = Limits(
            min(max_length, self.config.longest or max_length),
            causal=self.config.causal,
            languages=self.languages,
            embeds_languages=embeds_languages(self.config),
        )
        task = labelled(definition, limits, network, self.vocabulary)
        fields = {"vocabulary": self.vocabulary, "languages": self.languages, "labels": classes}
        fields |= {"labelled": task.description(), "name": self.name}
        rows = Examples(tuple(columns), values if has_scores else values.astype(np.int32))
        batches = ExampleBatches(task.encoded(self.vocabulary, rows, limits), batch_size)
        total = epochs * batches.steps_per_epoch
        config = fine_tuning(learning_rate, seed=seed, max_steps=total, warmup_steps=total // 10)
        fit_options = {"epochs": epochs, "steps_per_epoch": batches.steps_per_epoch, "verbose": 2}
        build_fit_model(network, task.objective, config).fit(batches.dataset(seed), **fit_options)
        return Pretrained(network, self.model, **fields)

    def save_pretrained(
        self, directory: str | os.PathLike, format: str = "weights.h5", license: str | None = None
    ) -> None:
        """Writes the model into a folder that `macaron_tf.load`, `--init` and `export` can read.

        If writing to a local disk fails, an earlier model in the folder remains unchanged.

            DIR/model.json           configuration of the network, its task and its results
            DIR/model.weights.h5     weights
            DIR/pooler.weights.h5    weights of a pooler that is not part of the network
            DIR/replaced_token.weights.h5  weights of an ELECTRA discriminator's head
            DIR/vocabulary/          vocabulary, if the model has a vocabulary
            DIR/recipe.json          recipe of the training run, if the model has a recipe
            DIR/code/                copies of user code, if needed; see `io.code_files`
            DIR/manifest.json        format and checksums
            DIR/README.md            model card, which you may edit

        Args:
            directory: folder to write, local or `gs://`. The folder must be new or empty, or
                contain only the files of an earlier `save_pretrained`, which are replaced.
            format: format of the weights, `"weights.h5"` or `"safetensors"`, which is also the
                suffix of the weight files. With `"hugging-face"`, the folder has config.json,
                model.safetensors, tokenizer files, a model card and manifest.json instead of the
                files above. Transformers and `load("hugging-face:DIR")` can read the folder.
            license: license to record. `None` means the model's `license`.
        """
        path = paths.as_path(directory).expanduser()
        path = path if paths.is_remote(path) else path.absolute()
        checkpoints.refuse_other_files(path, HUGGING_FACE)
        self._save(path, format, license, path.name)

    def _save(self, path: epath.Path, format: str, license: str | None, location: str) -> None:
        """Writes the folder of `save_pretrained`. The model card's example loads `location`."""
        if license is not None:
            return dataclasses.replace(self, license=license)._save(path, format, None, location)
        check_choice("format", format, FORMATS)
        manifest = {
            "step": self.results.get("step", 0),
            "metrics": self.results.get("metrics", {}),
            "vocabulary": self.vocabulary.hash if self.vocabulary else "",
            "weights": weight_table(self.network),
        }
        if format == HUGGING_FACE:
            # Imported here because hub itself imports this module.
            from macaron_tf.hub.hugging_face import writer

            write_files = writer(self, location.removeprefix(f"{HUB}:"))
            manifest["library"] = format
        else:
            write_files = functools.partial(self._write_files, format=format, location=location)
        checkpoints.save_whole(path, write_files, manifest)
        return None

    def push_to_hub(
        self,
        repository: str,
        format: str = "safetensors",
        license: str | None = None,
        private: bool | None = None,
    ) -> str:
        """Uploads the model to the Hugging Face hub in one commit, and returns the model's URL.

        Log in with `hf auth login`, or set HF_TOKEN, before the call. Then
        `macaron_tf.load("hub:OWNER/NAME")` loads the uploaded model. With `format="hugging-face"`,
        transformers can load the model too.

        Args:
            repository: name of the repository, `OWNER/NAME`. A missing repository is created. In an
                existing repository, the model card and the files of earlier pushes are replaced.
            format, license: see `save_pretrained`.
            private: whether a new repository is private. `None` means the owner's default.
        """
        name = check_login(repository)
        with tempfile.TemporaryDirectory(prefix="macaron_tf-") as folder:
            staging = pathlib.Path(folder, name.rpartition("/")[2])
            self._save(paths.as_path(staging), format, license, f"{HUB}:{name}")
            return push(staging, repository, private)

    def _write_files(self, directory: epath.Path, format: str, location: str) -> None:
        heads = {name: getattr(self, name) for name in HEADS if getattr(self, name)}
        layers = {"model": self.network, **heads}
        require_disk_space(directory, [w for layer in layers.values() for w in layer.weights])
        for name, layer in layers.items():
            save_weights(layer, directory / f"{name}.{format}")
        if self.vocabulary:
            self.vocabulary.save(directory / VOCABULARY)
        record = {
            "kind": self.recipe.get("kind", ""),
            "network": keras.saving.serialize_keras_object(self.network),
            "heads": {n: keras.saving.serialize_keras_object(head) for n, head in heads.items()},
            "vocabulary": VOCABULARY if self.vocabulary else None,
            "special": dataclasses.asdict(self.special),
            "usage": {name: getattr(self, name) for name in USAGE},
            "results": self.results,
        }
        files = {checkpoints.MODEL: record, **({RECIPE: self.recipe} if self.recipe else {})}
        files, code = take_code(directory, files)
        for name, value in files.items():
            (directory / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
        texts = self._task.examples() if self._task else ()
        card = self._card(use_of_folder(location, texts, code))
        (directory / checkpoints.CARD).write_text(card)

    @property
    def _task(self) -> TaskKind | None:
        """Task of the model, or `None` if the model has no task with texts as inputs."""
        with contextlib.suppress(UserError):
            return self.task
        return None

    def _card(self, use: str) -> str:
        pieces = self.vocabulary.pieces if self.vocabulary else None
        return model_card(self.card_facts, self.network, pieces, use)

    @property
    def card_facts(self) -> CardFacts:
        """Facts for the model card that do not depend on the folder of the model."""
        languages = self.languages or (self.vocabulary.languages if self.vocabulary else ())
        facts = self.recipe, self.results, self.license, self.unlisted
        pipeline = self._task.pipeline if self._task else ""
        return CardFacts(self.name or "model", languages, *facts, pipeline)


# Names of the fields that model.json stores unchanged under `usage`.
USAGE = tuple(f.name for f in dataclasses.fields(Pretrained) if f.name not in _NOT_IN_USAGE)


def _catalog_name(config: Settings) -> str:
    """Returns the catalog model to which `model_options` compares a configuration, or ""."""
    if isinstance(config, EncoderDecoderConfig):
        return "transformer_base"
    if isinstance(config, EncoderConfig):
        return "gpt2_base" if config.causal else "bert_base"
    return ""
