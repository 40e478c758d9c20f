"""Recipe and run of text-to-text fine-tuning, and how a run answers."""

import dataclasses
import sys
import typing
from typing import Annotated, Self

from annotated_types import Ge

from experiments.recipe import MAY_CHANGE, Recipe
from experiments.run import Run
from macaron_tf.data.batches import MixingConfig
from macaron_tf.data.tasks.definitions import TASKS
from macaron_tf.data.tasks.text_tasks import PREFIXES
from macaron_tf.data.translation import BatchingConfig
from macaron_tf.decoding import BeamSearchConfig, LineTranslator
from macaron_tf.errors import UserError, nearest
from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig
from macaron_tf.objectives import TranslationObjective
from macaron_tf.places import load, locate
from macaron_tf.pretrained import Pretrained
from macaron_tf.settings import INT32, Count, Dropout, Natural
from macaron_tf.special_ids import BOS, EOS
from macaron_tf.text import TextVocabulary
from macaron_tf.training import TrainingConfig

# Tasks whose answers are written as text: the name of a class, a score, or a span of the context.
TEXT_TASKS = tuple(n for n, task in TASKS.items() if task.kind == "classification" or n == "squad")
# E-mails and their subjects, from TensorFlow Datasets.
_SUMMARIES = ("tfds:aeslc", ("email_body", "subject_line"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRecipe(Recipe):
    """Every setting of a text-to-text run.

    Attributes:
        task: name of a task of GLUE or SuperGLUE, `"squad"`, `"summarization"` or `"translation"`;
            or several tasks for one model, joined by +.
        source: source of the examples: for GLUE and SuperGLUE see
            `macaron_tf.data.tasks.examples.read_examples`, for SQuAD
            `macaron_tf.data.tasks.questions.read_questions`, for summarization and translation
            `macaron_tf.data.read_pairs`. Of several tasks, only those without a default source
            read it.
        fields: names of the two sides of pairs: languages, or fields of a record.
        mixing: how often the model sees each of several tasks.
        init: the weights to start from: a run of `experiments.pretrain`, or `hugging-face:DIR`.
        starts: whether sources and targets begin with [CLS], before which the decoder reads [SEP],
            as in Hugging Face's BART. Models that were pre-trained with this package do not have
            that.
        sentinel_rows: rows of the embedding table beyond the vocabulary.
        max_source, max_target: most tokens of each side, with EOS (and [CLS]); longer texts are
            cut.
        label_smoothing: label smoothing of the training loss.
        batching: settings of batches.
        decoding: settings of beam search for answers.
        validation_examples: number of examples to answer in each validation; None: all.
    """

    kind = "text_to_text"
    command = "python -m experiments.text_to_text"
    may_change: typing.ClassVar = (*MAY_CHANGE, "decoding.", "validation_examples")
    by_argument: typing.ClassVar = {
        "task": "TASK",
        "init": "--init",
        "source": "--source",
        # Answers may be as long as targets, see `TextRun.writer`.
        **dict.fromkeys(
            ("decoding.max_length", "decoding.max_length_ratio", "decoding.max_length_offset"),
            "--set max_target",
        ),
    }

    task: str
    source: str
    fields: tuple[str, str] = ("source", "target")
    init: str
    starts: bool = False
    sentinel_rows: Natural = 0
    max_source: Annotated[int, Ge(2), INT32] = 128
    max_target: Annotated[int, Ge(2), INT32] = 32
    label_smoothing: Dropout = 0.0
    batching: BatchingConfig = BatchingConfig()
    mixing: MixingConfig = MixingConfig()
    decoding: BeamSearchConfig = BeamSearchConfig()
    validation_examples: Count | None = None

    def check(self) -> None:
        for task in self.tasks:
            if task not in (known := (*TEXT_TASKS, *PREFIXES)):
                near = nearest(task, known)
                raise self.error(f"task={task!r} must be one of {', '.join(known)}{near}")
            if self.tasks.count(task) > 1:
                raise self.error(f"task={self.task!r} names {task!r} twice: name it once")
            if not self.examples_of(task)[0]:
                raise UserError(f"the task {task!r} has no default source: give --source")
        for name in ("max_source", "max_target"):
            if self.starts and getattr(self, name) < 3:
                raise UserError(
                    f"{name} is {getattr(self, name)}: give 3 or more, for [CLS], a token and EOS"
                )

    def unread(self) -> dict[str, str]:
        one = {"mixing.": "a run of several tasks"} if len(self.tasks) == 1 else {}
        return super().unread() | one

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.task.split("+"))

    def examples_of(self, task: str) -> tuple[str, tuple[str, str]]:
        """Returns the data source of a task's examples, and the names of their two fields."""
        source, fields = own_examples(task)
        return (source, fields) if source and len(self.tasks) > 1 else (self.source, self.fields)

    def reading(self, source: str | None) -> Self:
        """Returns the recipe with the source that `--source` gives, if any."""
        own = all(own_examples(task)[0] for task in self.tasks)
        if source and own and len(self.tasks) > 1:
            raise UserError(
                f"--source {source} has no effect, because with several tasks each of {self.task} "
                "reads its default source: leave it out, or give a run of one task"
            )
        return self.changed(source=source or self.source)

    @property
    def answer_start(self) -> tuple[int, ...]:
        """Ids that the decoder reads before an answer."""
        return (EOS, BOS) if self.starts else (BOS,)

    @property
    def answer_room(self) -> int:
        """The most tokens of an answer, without EOS."""
        return self.max_target - len(self.answer_start)

    def make_objective(self, static_shapes: bool = False) -> TranslationObjective:
        return TranslationObjective(
            self.label_smoothing, skip_padding=not static_shapes, first=self.answer_start[0]
        )

    def usage(self) -> dict:
        answers = {
            "task": self.task,
            "longest": self.max_source,
            "max_target": self.max_target,
            "source_start": (BOS,) if self.starts else (),
            "answer_start": self.answer_start,
        }
        return {**super().usage(), "trained_length": self.max_source, "answers": answers}

    def model_config(self, vocab_size: int | None = None) -> EncoderDecoderConfig:
        if vocab_size is not None:
            vocab_size += self.sentinel_rows
        config = super().model_config(vocab_size)
        self.expect_model(config, EncoderDecoderConfig, "is no encoder-decoder")
        for name in ("max_source", "max_target"):
            self.expect_positions(config, name, getattr(self, name))
        return config


def own_examples(task: str) -> tuple[str, tuple[str, str]]:
    """The default source and fields of a task's examples; the source is "" if there is none."""
    if task == "summarization":
        return _SUMMARIES
    return (TASKS[task].source or "" if task in TASKS else ""), ("source", "target")


def recipe_for(task: str, start: Pretrained, init: str, source: str | None) -> TextRecipe:
    """Makes the recipe of a task for a start.

    Models trained by Adafactor, such as T5, are fine-tuned with Adafactor at a constant 0.001
    (Raffel et al. 2020, section 3.1.2); others, such as BART, with Adam at 3e-5 after a warm-up
    (BART's released recipe).

    Args:
        task: name of the task, or several.
        start: the pre-trained model.
        init: the place of the start.
        source: source of the examples; None: the task's default source.
    """
    training = TrainingConfig(
        max_steps=2_000,
        optimizer="adafactor",
        learning_rate=1e-3,
        schedule="constant",
        warmup_steps=0,
        dtype_policy=start.network.dtype_policy.name,
        validate_every=250,
        best_metric="score",
    )
    denoising = start.objective == "denoising"
    if (start.optimizer or ("adam" if denoising else "adafactor")) != "adafactor":
        training = dataclasses.replace(
            training,
            optimizer="adam",
            learning_rate=3e-5,
            schedule="linear",
            warmup_steps=200,
            beta_2=0.999,
            weight_decay=0.01,
            decay_vectors=False,
            clip_norm=0.1,
        )
    given, fields = own_examples(task)
    return TextRecipe(
        model=start.model,
        model_options=start.model_options,
        task=task,
        source=source or given,
        fields=fields,
        init=init,
        starts=bool(start.ends),
        # The paper's rows have 512 tokens, which SQuAD's contexts need.
        max_source=min(512 if "squad" in task.split("+") else 128, start.config.longest or 512),
        sentinel_rows=start.config.vocab_size - start.vocabulary.size,
        label_smoothing=0.1 if denoising and {*task.split("+")} <= {*PREFIXES} else 0.0,
        training=training,
    )


@dataclasses.dataclass(frozen=True)
class TextRun(Run):
    """A finished or running fine-tuning of an encoder-decoder."""

    recipe_class = TextRecipe

    @property
    def texts(self) -> TextVocabulary:
        """The vocabulary that tokenizes and cuts lines of both sides."""
        recipe = self.recipe
        return TextVocabulary(self.vocabulary, recipe.max_source, recipe.max_target, recipe.starts)

    def writer(
        self, network: EncoderDecoder, decoding: BeamSearchConfig | None = None
    ) -> LineTranslator:
        """Makes the `LineTranslator` that answers lines; by default with the recipe's decoding."""
        recipe = self.recipe
        # Answers may be as long as targets in training, even for a short source. The ids before
        # BOS are not part of the search.
        prefix = recipe.answer_start[:-1]
        longest = recipe.answer_room + 1  # and EOS
        decoding = dataclasses.replace(
            decoding or recipe.decoding,
            max_length_ratio=0.0,
            max_length_offset=longest,
            max_length=longest,
        )
        # Here sources are not cut, because the translator cuts them with a warning.
        texts = TextVocabulary(self.vocabulary, sys.maxsize, recipe.max_target, recipe.starts)
        longest_source = recipe.max_source - 1  # without EOS
        return LineTranslator(
            network, texts, decoding, max_source_length=longest_source, prefix=prefix
        )


def open_run(
    place: str, checkpoint: str | None = None, task: str | None = None
) -> tuple[TextRun, EncoderDecoder]:
    """Opens a run and its network; an encoder-decoder saved without a recipe is made a run.

    Args:
        place: place that `macaron_tf.load` reads.
        checkpoint: checkpoint of a run, see `Run.load_network`.
        task: task to answer, if the model's folder does not tell it.
    """
    location = locate(place)
    if not location.without_recipe:
        opened = TextRun.open(location.folder)
        if task not in (None, opened.recipe.task, *opened.recipe.tasks):
            raise UserError(f"{place} answers {opened.recipe.task} only: leave --task {task} out")
        return opened, opened.load_network(checkpoint or location.checkpoint)
    found = load(place)
    if not isinstance(found.network, EncoderDecoder) or found.vocabulary is None:
        raise UserError(
            f"{place} is no encoder-decoder with a vocabulary: give a run of `text_to_text train`, "
            "or a T5 or BART"
        )
    answers = found.answers
    if not task and not answers:
        raise UserError(f"{place} does not tell which task it answers: give --task, such as sst2")
    recipe = recipe_for(task or answers["task"], found, place, "-")
    longest = found.config.longest or recipe.max_source
    recipe = recipe.changed(
        max_source=min(answers.get("longest", recipe.max_source), longest),
        max_target=min(answers.get("max_target", recipe.max_target), longest),
        starts=bool(answers.get("source_start", recipe.starts)),
    )
    return TextRun(location.folder, recipe, found.vocabulary), found.network
