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

from macaron_tf.data.batches import ExampleBatches
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.engines.accuracy import Accuracy
from macaron_tf.engines.certificate import Certificate
from macaron_tf.engines.graph import TaskGraph, columns_of
from macaron_tf.engines.lite_decoding import LiteDecoder, converted_decoder
from macaron_tf.engines.lite_writer import KINDS, converted
from macaron_tf.engines.saved_model import WRITERS, write_version
from macaron_tf.errors import UserError, check_choice
from macaron_tf.io import paths
from macaron_tf.io.code_files import take_code
from macaron_tf.io.hub import HUB, check_login, push
from macaron_tf.io.signatures import sign_code
from macaron_tf.layers.heads import Pooler
from macaron_tf.layers.language_heads import ReplacedTokenHead
from macaron_tf.models import catalog
from macaron_tf.models.base import Model
from macaron_tf.models.config import EncoderConfig, EncoderDecoderConfig, differing_fields
from macaron_tf.models.encoder import Encoder
from macaron_tf.models.language_model import LanguageModel
from macaron_tf.models.model_card import USE_OF_EXPORT, CardFacts, model_card, use_of_folder
from macaron_tf.models.tasks import EncoderClassifier
from macaron_tf.settings import Settings
from macaron_tf.tasks import Decoding, TaskKind, task_of
from macaron_tf.text import PieceVocabulary
from macaron_tf.training import build_fit_model, checkpoints
from macaron_tf.training.config import fine_tuning
from macaron_tf.training.state import require_room, save_weights, weight_table

RECIPE, VOCABULARY = "recipe.json", "vocabulary"
HUGGING_FACE = "hugging-face"
FORMATS = ("weights.h5", "safetensors", HUGGING_FACE)  # of `save_pretrained`
HEADS = ("pooler", "replaced_token")  # layers outside the network
# Fields that are saved elsewhere, or that only hold for one folder or process.
_APART = ("network", "vocabulary", "ids", "name", "checkpoint", "lite", "recipe", "results", *HEADS)


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
    """A trained network, its vocabulary and its task.

    Example:
        model = macaron_tf.load("runs/rte")
        model.predict([("Two men sleep.", "Men sleep.")])  # one answer for each pair

    Attributes:
        network: a run's network, or for another library's model an equivalent network of this
            library. A model with a task's head becomes the class that a run of that task has; other
            encoders become a `PretrainingEncoder`, with its head `sentence_pair` if the weights
            have that head and a pooler.
        model: name of the catalog's model that the network is a variant of; "": chosen by its
            configuration.
        objective: name of its pre-training objective; None: it has none. For a `LanguageModel`,
            None becomes "causal_language".
        vocabulary: tokenizes text for the network; None: the tokenizer is missing or of a kind that
            this library does not support.
        ids: `(V',)` int, the other library's id for each id here, -1 if there is none; None: all
            are equal.
        unread: names of weights that were not read, such as those of other heads.
        pooler: an encoder's pooler over [CLS] that is outside the network, or None.
        replaced_token: an ELECTRA discriminator's head, `(B, L, D) -> (B, L)` logits, or None.
        has_masked_language: whether the weights of the masked language head were read; otherwise
            they have their initial values.
        starts: whether a language model can write the beginning of a text, after [CLS].
        sentinels: for an encoder-decoder, number of T5's sentinel ids, which follow the
            vocabulary's ids.
        ends: for an encoder-decoder, arguments of `SequenceGenerator`: the ids before a source and
            before an answer, if they are not its defaults.
        answers: for a fine-tuned encoder-decoder, arguments of `TaskGenerator`: the task, the
            greatest lengths and the first tokens of its texts.
        pooling: how a sentence encoder pools: `"cls"`, `"mean"` or `"max"`, the latter two with
            [CLS] and [SEP].
        normalize: whether a sentence encoder scales vectors to length 1.
        max_length: longest row of a sentence encoder or classifier; longer texts are cut.
        name: a short name, for tables.
        checkpoint: name of the checkpoint that the weights were read from, or the argument of
            `load` for another library's model.
        optimizer: name of a run's optimizer.
        trained_length: length of a run's longest training rows.
        languages: a run's languages, in the order of their embeddings.
        language: language of a classifier's texts; None: the model's first.
        labels: names of the classes of a classifier or tagger, class 0 first; (): unknown.
        labelled: for a fine-tuned model: `task`, fields of its `Task`, and `limits` of its rows.
        decoding: for a translator: fields of its `BeamSearchConfig`.
        license: identifier of the weights' license in Hugging Face's spelling; "": unknown.
        recipe: a run's recipe.json.
        unlisted: names of settings in the recipe that the model card leaves out, because they do
            not matter to the network. A name that ends in a dot stands for all names that begin
            with it.
        results: for a run: `step` and `metrics`, from the validation of the weights; `scores`, the
            metrics of evaluations by the names of their files; `warning`, why other weights than
            the expected ones were read.
        lite: see `with_lite`.
    """

    network: keras.Model
    model: str = ""
    objective: str | None = None
    vocabulary: PieceVocabulary | None = None
    ids: np.ndarray | None = None
    unread: tuple[str, ...] = ()
    pooler: Pooler | None = None
    replaced_token: ReplacedTokenHead | None = None
    has_masked_language: bool = False
    starts: bool = True
    sentinels: int = 0
    ends: Mapping[str, Any] = dataclasses.field(default_factory=dict)
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
                f"license={self.license!r}: give an identifier that Hugging Face's hub knows, such "
                "as apache-2.0, mit or cc-by-4.0"
            )
        if isinstance(self.network, Model) and not self.model:
            object.__setattr__(self, "model", _kind_of(self.network.config))
        if isinstance(self.network, LanguageModel) and self.objective is None:
            object.__setattr__(self, "objective", "causal_language")

    @property
    def config(self):
        """The network's configuration."""
        return self.network.config

    @property
    def encoder(self) -> Encoder:
        """The network's encoder, or the network itself if it is an encoder."""
        return self.network if isinstance(self.network, Encoder) else self.network.encoder

    def __repr__(self) -> str:
        kind = type(self.network).__name__
        if isinstance(self.network, Model):
            kind += f" on {catalog.sized_name(self.model, dict(self.model_options))}"
        weights = f"{self.network.count_params():,} weights"
        return f"<Pretrained {self.name or 'model'}: {kind}, {weights}>"

    @property
    def weights_record(self) -> dict[str, str]:
        """The checkpoint's name for records, with a warning if it is not the expected one."""
        warned = {name: self.results[name] for name in ("warning",) if name in self.results}
        return {"checkpoint": self.checkpoint, **warned}

    @functools.cached_property
    def task(self) -> TaskKind:
        """The task that the model was trained for.

        Raises:
            UserError: the model answers no texts.
        """
        return task_of(self)

    def _graph(self, **options: Any) -> TaskGraph:
        """Makes the task's graphs for some options of `TaskKind.with_options`, once for each."""
        key = tuple(sorted(options.items()))
        if key not in self._graphs:
            task = self.task.with_options(**options) if key else self.task
            if self.lite and isinstance(task, Decoding):
                self._graphs[key] = TaskGraph(task.asking(self._lite_decoder))
            else:
                small = converted(TaskGraph(task), self.lite) if self.lite else None
                self._graphs[key] = TaskGraph(task, small)
        return self._graphs[key]

    @functools.cached_property
    def _graphs(self) -> dict[tuple, TaskGraph]:
        return {}

    @functools.cached_property
    def _lite_decoder(self) -> LiteDecoder:
        return converted_decoder(self.network, self.lite)

    def with_lite(self, kind: str = "fp32") -> Self:
        """Returns a copy whose `predict` answers small requests in LiteRT, in a third of the time.

        Models that write text always decode in LiteRT, also in `stream`. It is no default because
        the first request converts the network, which takes seconds, and a minute for a GPT-2 of
        base size. Training the network further does not change the copy's answers.

        Args:
            kind: "fp32", or "int8": int8 matrices, twice as fast; probabilities differ by 1e-3.
        """
        check_choice("kind", kind, KINDS)
        return dataclasses.replace(self, lite=kind)

    def predict(self, *texts: Any, **options: Any) -> Any:
        """Answers texts in the same form as the exported model and its server.

        Args:
            texts: one argument for each of the task's texts (`model.task.texts`): a text, or an
                iterable of texts such as a list, an array, a pandas column or a `tf.data.Dataset`.
                Or a single argument: an iterable of examples, each a tuple or dictionary of texts.
            options: options of the task, such as `temperature` or `n_best`.

        Returns:
            A list with a plain Python value for each example, or the value of a single example.

        Raises:
            UserError: the model answers no texts, or does not accept a text or an option.
        """
        columns, one = columns_of(self.task.texts, texts)
        kept = {name: options.pop(name) for name in self.task.takes if name in options}
        graph = self._graph(**kept)
        one_at_a_time = self.lite and isinstance(graph.task, Decoding)
        with self._lite_decoder.alone() if one_at_a_time else contextlib.nullcontext():
            answers = graph.answer(columns, **options)
        return answers[0] if one else answers

    def stream(self, text: str, **options: Any) -> Iterator[str]:
        """Yields the parts of an answer as soon as they are generated; see `predict`."""
        return self._graph().task.stream(text, **options)

    def score(self, *texts: Any) -> Any:
        """Computes the probabilities of texts.

        Args:
            texts: texts for a language model; sources and their targets for a translator. In the
                forms that `predict` accepts.

        Returns:
            For each text, the natural logarithm of its probability and its number of tokens.
        """
        signatures = self.task.functions()
        names = signatures["score"][1] if "score" in signatures else ("text",)
        columns, one = columns_of([*names], texts)
        if "score" in signatures:
            found = self._graph().answer(columns, "score")
        else:
            found = self.task.likelihoods(*columns)
        return found[0] if one else found

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
        """Writes a SavedModel that gives the same answers as `predict`, with its vocabulary.

        A server needs tensorflow and tensorflow_text, but not this library. Every written file is
        opened and compared with the network; see `macaron_tf.engines.certificate`.

        Args:
            path: the model's folder, which has a folder for each version. TensorFlow Serving
                watches it.
            version: number of the version; by default one more than the greatest in the folder.
            bfloat16: whether dense layers compute in bfloat16; see `TaskGraph.in_bfloat16`.
            lite: `"fp32"` or `"int8"` to write the network for LiteRT as well; this project's
                server answers small requests with it. See `with_lite`.
            formats: `"onnx"` or `"openvino"` or both, to write the network alone, from ids to its
                outputs in float32, in a folder of that name inside the version.
            check: a source of labelled examples, such as `"tsv:dev.tsv"`, on which the network and
                each file are scored; see `Accuracy`.
            options: options of the task, such as `n_best`.

        Returns:
            The folder of the version.
        """
        for name in formats:
            check_choice("formats", name, [*WRITERS])
        task = self.task.with_options(**options) if options else self.task
        graph = TaskGraph(task)
        record = {"run": self.name, **self.weights_record, **task.facts()}
        accuracy = Accuracy(task, check) if check else None
        certificate = Certificate(task, accuracy)  # before the policy changes
        narrow = graph.in_bfloat16(self.checkpoint or self.name)
        with narrow if bfloat16 else contextlib.nullcontext():
            return write_version(
                graph, record, path, version, lite, formats, certificate, self._card(USE_OF_EXPORT)
            )

    @property
    def model_options(self) -> tuple[tuple[str, Any], ...]:
        """Pairs of field and value where the configuration differs from the catalog's `model`."""
        known = catalog.config(self.model, vocab_size=self.config.vocab_size)
        return tuple(sorted(differing_fields(self.config, known).items()))

    def require_floats(self) -> None:
        """Raises a UserError if the weights are quantized, because these cannot be trained."""
        if any(layer.quantization_mode for layer in self.network._flatten_layers()):
            raise UserError(
                f"{self.name or self.checkpoint} is quantized: start from the model before "
                "quantization"
            )

    def classifier(
        self, num_classes: int, head_dropout: float = 0.1, **changes
    ) -> EncoderClassifier:
        """Makes a classifier from this encoder and its pooler, with a new last layer.

        Args:
            num_classes: C; 1 for regression.
            head_dropout: dropout rate of the pooled vector, 0 to 1.
            changes: other values for fields of the `EncoderConfig` that do not change the shapes of
                weights, such as `dropout`.

        Raises:
            UserError: the network is no encoder or is quantized, or `changes` has another splitting
                scheme.
        """
        if not (isinstance(self.network, Model) and isinstance(self.config, EncoderConfig)):
            raise UserError(
                f"{self.name or self.checkpoint} is a {type(self.network).__name__}: a classifier "
                "needs an encoder"
            )
        config = dataclasses.replace(self.config, **changes)
        if config.splittings != self.config.splittings:
            raise UserError(
                f"scheme={config.scheme!r}: the weights were trained with {self.config.scheme!r}"
            )
        self.require_floats()
        classifier = EncoderClassifier(config, num_classes, head_dropout)
        classifier.build()
        classifier.encoder.set_weights(self.encoder.get_weights())
        if pooler := self.network.pooler or self.pooler:
            classifier.pooler.set_weights(pooler.get_weights())
        return classifier

    def fine_tune(
        self,
        texts: Iterable[str],
        labels: Iterable[str],
        epochs: int = 3,
        learning_rate: float = 5e-5,
        batch_size: int = 32,
        max_length: int = 128,
        seed: int = 1,
    ) -> "Pretrained":
        """Trains a classifier of texts, initialized with this encoder, and returns it.

        The optimizer is BERT's Adam, with warm-up in the first 10% of the updates and then a linear
        decay to 0. `experiments.finetune` also validates, resumes runs, and trains on pairs of
        texts, scores and tags.

        Args:
            texts: the texts to train on.
            labels: name of each text's class.
            max_length: longest row with special ids; longer texts are cut.

        Example:
            model = macaron_tf.load("hugging-face:bert-base-uncased")
            model = model.fine_tune(["Fine.", "Late again."], ["praise", "complaint"])
            model.predict(["It came late."])
        """
        [texts], labels = columns_of(("text",), [texts])[0], [*map(str, labels)]
        classes = tuple(sorted({*labels}))
        if len(texts) != len(labels) or len(classes) < 2:
            raise UserError(
                f"{len(texts)} texts and {len(labels)} labels of {len(classes)} classes: give a "
                "label for each text, and two classes or more"
            )
        keras.utils.set_random_seed(seed)
        network = self.classifier(len(classes))
        longest = min(max_length, self.config.longest or max_length)
        own = {"vocabulary": self.vocabulary, "ids": self.ids, "languages": self.languages}
        own |= {"labels": classes, "max_length": longest, "name": self.name}
        tuned = Pretrained(network, self.model, **own)
        task, numbers = tuned.task, np.searchsorted(classes, labels)
        examples = Examples((texts,), numbers.astype(np.int32))
        rows = ExampleBatches(task.encoded(self.vocabulary, examples, task.limits), batch_size)
        total = epochs * rows.steps_per_epoch
        config = fine_tuning(learning_rate, seed=seed, max_steps=total, warmup_steps=total // 10)
        steps = {"epochs": epochs, "steps_per_epoch": rows.steps_per_epoch, "verbose": 2}
        build_fit_model(tuned.network, task.objective, config).fit(rows.dataset(seed), **steps)
        return tuned

    def save_pretrained(
        self, directory: str | os.PathLike, format: str = "weights.h5", license: str | None = None
    ) -> None:
        """Atomically writes a folder that `macaron_tf.load`, `--init` and `export` accept.

            DIR/model.json           the network without weights, its use and its results
            DIR/model.weights.h5     its weights, and pooler.weights.h5 for a pooler outside it; or
                                     model.safetensors and pooler.safetensors
            DIR/vocabulary/          its vocabulary, if it has one
            DIR/recipe.json          recipe of the run that trained it
            DIR/code/                files of your own code that it needs: see `io.code_files`
            DIR/code.json            signatures of the names of that code: see `io.signatures`
            DIR/manifest.json        format and checksums
            DIR/README.md            a model card, which you may edit

        Args:
            directory: a folder, local or `gs://`, that is new or empty, or that an earlier
                `save_pretrained` wrote; the latter is replaced.
            format: `"weights.h5"` or `"safetensors"` for the weights; or `"hugging-face"` for a
                folder that transformers and `load("hugging-face:DIR")` read, with config.json,
                model.safetensors and the tokenizer.
            license: the license to record; None: the model's `license`.

        Raises:
            UserError: the folder has other files, or cannot be written; transformers has no
                equivalent of the network or of its vocabulary.
        """
        path = paths.as_path(directory).expanduser()
        path = path if paths.is_remote(path) else path.absolute()
        checkpoints.refuse_other_files(path, HUGGING_FACE)
        self._save(path, format, license, path.name)

    def _save(self, path: epath.Path, format: str, license: str | None, place: str) -> None:
        """Writes the folder of `save_pretrained`.

        Args:
            place: the argument of `load` in the example of the model card.
        """
        if license is not None:
            return dataclasses.replace(self, license=license)._save(path, format, None, place)
        check_choice("format", format, FORMATS)
        manifest = {
            "step": self.results.get("step", 0),
            "metrics": self.results.get("metrics", {}),
            "vocabulary": self.vocabulary.hash if self.vocabulary else "",
            "weights": weight_table(self.network),
        }
        if format == HUGGING_FACE:
            # Imported here because interop itself imports this module.
            from macaron_tf.interop.hugging_face import writer

            write = writer(self, place.removeprefix(f"{HUB}:"))
            manifest["library"] = format
        else:
            write = functools.partial(self._write_files, kind=format, place=place)
        checkpoints.save_whole(path, write, manifest)
        return None

    def push_to_hub(
        self,
        repository: str,
        format: str = "safetensors",
        license: str | None = None,
        private: bool | None = None,
    ) -> str:
        """Uploads the model to Hugging Face's hub, in one commit, and returns its address there.

        Log in by `hf auth login` before, or set HF_TOKEN. `macaron_tf.load("hub:OWNER/NAME")` opens
        the model again; with `format="hugging-face"`, transformers opens it too.

        Args:
            repository: `OWNER/NAME`. A missing repository is created; in an existing one, the card
                and the files that an earlier push may have written are replaced.
            format, license: see `save_pretrained`.
            private: whether a new repository is private; None: the default of its owner.

        Raises:
            UserError: you are not logged in, may not write there, or the hub cannot be reached.
        """
        name = check_login(repository)
        with tempfile.TemporaryDirectory(prefix="macaron_tf-") as folder:
            place = pathlib.Path(folder, name.rpartition("/")[2])
            self._save(paths.as_path(place), format, license, f"{HUB}:{name}")
            return push(place, repository, private)

    def _write_files(self, directory: epath.Path, kind: str, place: str) -> None:
        heads = {name: getattr(self, name) for name in HEADS if getattr(self, name)}
        layers = {"model": self.network, **heads}
        require_room(directory, [w for layer in layers.values() for w in layer.weights])
        for name, layer in layers.items():
            save_weights(layer, directory / f"{name}.{kind}")
        if self.vocabulary:
            self.vocabulary.save(directory / VOCABULARY)
        record = {
            "kind": self.recipe.get("kind", ""),
            "network": keras.saving.serialize_keras_object(self.network),
            "heads": {n: keras.saving.serialize_keras_object(head) for n, head in heads.items()},
            "vocabulary": VOCABULARY if self.vocabulary else None,
            "ids": None if self.ids is None else self.ids.tolist(),
            "usage": {name: getattr(self, name) for name in USAGE},
            "results": self.results,
        }
        files = {checkpoints.MODEL: record, **({RECIPE: self.recipe} if self.recipe else {})}
        files, code = take_code(directory, files)
        sign_code(directory, *files.values())
        for name, value in files.items():
            (directory / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
        texts = self._task.examples() if self._task else ()
        card = self._card(use_of_folder(place, texts, code))
        (directory / checkpoints.CARD).write_text(card)

    @property
    def _task(self) -> TaskKind | None:
        """The task, or None if the model answers no texts."""
        with contextlib.suppress(UserError):
            return self.task
        return None

    def _card(self, use: str) -> str:
        pieces = self.vocabulary.pieces if self.vocabulary else None
        return model_card(self.card_facts, self.network, pieces, use)

    @property
    def card_facts(self) -> CardFacts:
        """The facts in the model card that do not depend on where the model is saved."""
        languages = self.languages or (self.vocabulary.languages if self.vocabulary else ())
        known = self.recipe, self.results, self.license, self.unlisted
        pipeline = self._task.pipeline if self._task else ""
        return CardFacts(self.name or "model", languages, *known, pipeline)


# Fields about the network's use, which model.json stores unchanged.
USAGE = tuple(f.name for f in dataclasses.fields(Pretrained) if f.name not in _APART)


def _kind_of(config: Settings) -> str:
    """Name of the catalog's model that a configuration is a variant of; "": unknown."""
    if isinstance(config, EncoderDecoderConfig):
        return "transformer_base"
    if isinstance(config, EncoderConfig):
        return "gpt2_base" if config.causal else "bert_base"
    return ""
