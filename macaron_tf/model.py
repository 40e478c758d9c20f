"""`Model`, a trained network with its vocabulary and its task, and `load`."""

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from etils import epath

from macaron_tf.engines.accuracy import Accuracy
from macaron_tf.engines.certificate import Certificate
from macaron_tf.engines.graph import TaskGraph, columns_of
from macaron_tf.engines.lite_decoding import LiteDecoder, convert_decoder
from macaron_tf.engines.lite_writer import PRECISIONS, convert_to_lite
from macaron_tf.engines.networks import FORMATS
from macaron_tf.engines.saved_model import write_version
from macaron_tf.errors import UserError, check_choice
from macaron_tf.hub import saving
from macaron_tf.io.paths import as_path
from macaron_tf.models import catalog
from macaron_tf.models.base import Network
from macaron_tf.models.config import StackConfig
from macaron_tf.models.model_card import USE_OF_EXPORT
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.runs.loading import read_model
from macaron_tf.tasks import Decoding, TaskKind, task_of
from macaron_tf.text.base import Vocabulary


@dataclasses.dataclass(frozen=True, eq=False)
class Model(ModelParts):
    """A trained network, its vocabulary and its task.

    Example:
        model = macaron_tf.load("runs/rte")
        model.predict([("Two men sleep.", "Men sleep.")])  # a list with one answer

    Attributes:
        lite: LiteRT weight type; see `with_lite`. `None` means that `predict` uses TensorFlow.
    """

    lite: str | None = None

    def __repr__(self) -> str:
        description = type(self.network).__name__
        if isinstance(self.network, Network):
            description += f" on {catalog.sized_name(self.card.model, dict(self.model_options))}"
        weights = f"{self.network.count_params():,} weights"
        return f"<Model {self.card.name or 'model'}: {description}, {weights}>"

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
                or an iterable of strings, such as a list, an array or a pandas column.
                Alternatively, a single argument holds all examples: an iterable of tuples or
                dictionaries of texts.
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

    def generate(self, *texts: Any, **options: Any) -> Any:
        """Does the same as `predict`, under the name of text generation in KerasHub."""
        return self.predict(*texts, **options)

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
            path: folder of the model, which gets a subfolder for each version, numbered from 1.
                TensorFlow Serving can watch this folder.
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
            check_choice("formats", name, [*FORMATS])
        task = self.task.with_options(**options) if options else self.task
        graph = TaskGraph(task)
        record = {"run": self.card.name, "checkpoint": self.card.checkpoint, **task.facts()}
        accuracy = Accuracy(task, check) if check else None
        certificate = Certificate(task, accuracy)  # before the policy changes
        in_bfloat16 = graph.in_bfloat16(self.card.title)
        card = saving.card(self, self._task, USE_OF_EXPORT)
        with in_bfloat16 if bfloat16 else contextlib.nullcontext():
            return write_version(graph, record, path, lite, formats, certificate, card)

    def fit(
        self,
        texts: Iterable[Any],
        labels: Iterable[Any],
        validation: tuple[Iterable[Any], Iterable[Any]] | None = None,
        folder: str | os.PathLike | None = None,
        task: str | None = None,
        learning_rate: float = 5e-5,
        seed: int = 1,
        **settings: Any,
    ) -> "Model":
        """Fine-tunes this encoder or language model on labelled texts, and returns the new model.

        The training is that of `macaron train finetune:TASK`: AdamW with BERT's hyperparameters
        (see `fine_tuning`), a learning rate that rises in the first 10% of the updates and then
        falls linearly to 0, and a validation after each epoch. The result has the weights with the
        best validation score.

        Args:
            texts: training texts, pairs of texts as tuples, or lists of words for a tagger.
            labels: for each text the name of its class, the list of all its classes' names, its
                score as a float, or the list of its words' tags.
            validation: texts and labels to validate on; `None` means that a tenth of the training
                texts is held out.
            folder: folder for the run, which keeps its checkpoints and metrics and continues after
                an interruption; `None` means a temporary folder.
            task: `"classify"`, `"multilabel"`, `"regress"`, `"tag"` or `"choose"`; `None` means
                that of the type of the labels. The texts of `"choose"` are dictionaries with the
                columns of a table.
            seed: random seed for initial weights, shuffling and dropout.
            settings: further settings of the recipe `finetune:TASK`, such as `epochs` (default 3),
                `batch_size` (32), `max_length` in tokens (128), `head_dropout` (0.1) and
                `lora_rank` (0, which trains all weights).

        Example:
            model = macaron_tf.load("hugging-face:bert-base-uncased")
            model = model.fit(texts, labels)
            model.predict(["It came late."])
        """
        from macaron_tf.runs.finetuning import fit_examples  # prediction does not need the trainer

        with contextlib.ExitStack() as stack:
            temporary = folder or stack.enter_context(tempfile.TemporaryDirectory())
            run = as_path(temporary)
            if folder is None:
                run /= self.card.name or "model"
            options = (task, learning_rate, seed)
            fit_examples(self, run, (texts, labels), validation, *options, **settings)
            return load(run).with_card(name=self.card.name)

    def save_pretrained(
        self, directory: str | os.PathLike, format: str = "weights.h5", license: str | None = None
    ) -> None:
        """Writes the model into a folder that `macaron_tf.load`, `--init` and `export` can read.

        If writing to a local disk fails, an earlier model in the folder remains unchanged.

            DIR/model.json           configuration of the network, its task and its results
            DIR/model.weights.h5     weights
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
        saving.save(self, self._task, directory, format=format, license=license)

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
        options = {"format": format, "license": license}
        return saving.publish(self, self._task, repository, private, **options)

    @property
    def _task(self) -> TaskKind | None:
        """Task of the model, or `None` if the model has no task with texts as inputs."""
        with contextlib.suppress(UserError):
            return self.task
        return None


def load(
    location: str | os.PathLike,
    lower_case: bool | None = None,
    vocabulary: Vocabulary | str | os.PathLike | None = None,
    trust_code: bool = False,
) -> Model:
    """Loads a trained network with its weights, its vocabulary and its task.

    Args:
        location: the network, in one of these forms:

            - `RUN`, the folder of a training run;
            - `RUN@CHECKPOINT`, a checkpoint of a run (see `find_checkpoint`);
            - `DIR`, a folder that `Model.save_pretrained` wrote;
            - `hugging-face:DIR`, a folder that transformers or sentence-transformers saved;
            - `keras-hub:DIR`, a KerasHub preset of BERT, RoBERTa, DistilBERT, ELECTRA or GPT-2, or
              a preset that `macaron_tf.hub.keras_hub` wrote;
            - `model-garden:DIR`, a BERT checkpoint of TensorFlow's Model Garden;
            - `hub:OWNER/NAME[@REVISION]`, a Hugging Face hub repository with the files of one of
              the folders above except `RUN`. The package huggingface_hub downloads and caches the
              files.
        lower_case: whether to lower-case text. Pass `lower_case` only for WordPiece files that do
            not say whether text is lower-cased.
        vocabulary: vocabulary, or its folder, for a network that was saved without a vocabulary.
        trust_code: whether to import Python modules that the folder names or contains, such as a
            custom block. The code in these modules then runs in this process.

    Example:

        bert = macaron_tf.load("hugging-face:bert-base-uncased")
        classifier = bert.fit(texts, labels)
        bert.save_pretrained("my-bert")
    """
    model = read_model(location, lower_case, trust_code)
    if vocabulary is not None:
        if model.vocabulary is not None:
            raise UserError(f"{location} has its own vocabulary: leave `vocabulary` out")
        if not isinstance(vocabulary, Vocabulary):
            vocabulary = Vocabulary.load(vocabulary)
        size = vocabulary.size
        if isinstance(model.network, Network) and isinstance(model.config, StackConfig):
            size = model.config.vocab_size
        if vocabulary.size > size:
            found = f"the vocabulary has {vocabulary.size} tokens, but {location} has only"
            raise UserError(f"{found} {size} embeddings: give its own vocabulary")
        model = dataclasses.replace(model, vocabulary=vocabulary)
    return Model(**vars(model))
