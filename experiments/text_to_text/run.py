"""A text-to-text run: its recipe, its sources, and its answers by a search or by draws."""

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

# Tasks whose answers are words: a class's name, a score, or what stands in the context.
TEXT_TASKS = tuple(n for n, task in TASKS.items() if task.kind == "classification" or n == "squad")
# The e-mails and their subjects that TensorFlow Datasets has.
_SUMMARIES = ("tfds:aeslc", ("email_body", "subject_line"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRecipe(Recipe):
    """Every setting of a text-to-text run.

    Attributes:
        task: of GLUE or SuperGLUE, by its name; `"squad"`, `"summarization"` or `"translation"`; or
            several for one model, with + between.
        source: the examples, see `macaron_tf.data.tasks.examples.read_examples`, of SQuAD
            `macaron_tf.data.tasks.questions.read_questions`; of the last two
            tasks pairs of texts, see `macaron_tf.data.read_pairs`. Of several tasks, those of the
            ones that have no data of their own.
        fields: names of the two sides of pairs: languages, or fields of a record.
        mixing: of several tasks, how often each is seen.
        init: the weights to start from: a run of `experiments.pretrain`, or `hugging-face:DIR`.
        starts: whether sources and targets begin with [CLS], the decoder reading [SEP] before it,
            as BART's of Hugging Face; the runs trained here do without.
        sentinel_rows: rows of the model's table beyond the vocabulary's.
        max_source, max_target: greatest number of tokens of each side, EOS (and [CLS]) included;
            longer texts are cut.
        label_smoothing: of the objective.
        batching: how pairs become batches.
        decoding: of answers.
        validation_examples: answers written for a validation; None = all.
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
                raise self.error(f"task={self.task!r} names {task!r} twice: once is enough")
            if not self.examples_of(task)[0]:
                raise UserError(f"the task {task!r} has no data of its own: give --source")
        for name in ("max_source", "max_target"):
            if self.starts and getattr(self, name) < 3:
                raise UserError(f"{name} is {getattr(self, name)}: [CLS], a token and EOS are 3")

    def unread(self) -> dict[str, str]:
        one = {"mixing.": "a run of several tasks"} if len(self.tasks) == 1 else {}
        return super().unread() | one

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.task.split("+"))

    def examples_of(self, task: str) -> tuple[str, tuple[str, str]]:
        """Source and fields of one of the recipe's tasks."""
        source, fields = own_examples(task)
        return (source, fields) if source and len(self.tasks) > 1 else (self.source, self.fields)

    def reading(self, source: str | None) -> Self:
        """The recipe with the examples of `--source`, where it is given."""
        own = all(own_examples(task)[0] for task in self.tasks)
        if source and own and len(self.tasks) > 1:
            raise UserError(
                f"--source {source}: every task of {self.task} has data of its own, which are read "
                "of several tasks: leave --source out, or give a run of one task"
            )
        return self.changed(source=source or self.source)

    @property
    def answer_start(self) -> tuple[int, ...]:
        """Ids that the decoder reads before an answer."""
        return (EOS, BOS) if self.starts else (BOS,)

    @property
    def answer_room(self) -> int:
        """Tokens of an answer, EOS not counted."""
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
    """Source and fields of a task's own examples; "" where it has none."""
    if task == "summarization":
        return _SUMMARIES
    return (TASKS[task].source or "" if task in TASKS else ""), ("source", "target")


def recipe_for(task: str, start: Pretrained, init: str, source: str | None) -> TextRecipe:
    """The settings of a task from a start.

    T5's runs, which Adafactor made, are fine-tuned with it at a constant 0.001 (Raffel et al.
    2020, section 3.1.2); BART's with Adam at 3e-5 after a warm-up (the released recipe).
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
        # The paper's rows hold 512 tokens, which the contexts of SQuAD need.
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
        """The vocabulary that cuts lines of both sides."""
        recipe = self.recipe
        return TextVocabulary(self.vocabulary, recipe.max_source, recipe.max_target, recipe.starts)

    def writer(
        self, network: EncoderDecoder, decoding: BeamSearchConfig | None = None
    ) -> LineTranslator:
        """Writes answers, a line for a line; `decoding` is the recipe's by default."""
        recipe = self.recipe
        # A target may be as long as in training, however short the source is; the ids before
        # BOS are not searched.
        prefix = recipe.answer_start[:-1]
        longest = recipe.answer_room + 1  # and EOS
        decoding = dataclasses.replace(
            decoding or recipe.decoding,
            max_length_ratio=0.0,
            max_length_offset=longest,
            max_length=longest,
        )
        # The translator cuts sources, for it says so.
        texts = TextVocabulary(self.vocabulary, sys.maxsize, recipe.max_target, recipe.starts)
        longest_source = recipe.max_source - 1  # EOS comes
        return LineTranslator(
            network, texts, decoding, max_source_length=longest_source, prefix=prefix
        )


def open_run(
    place: str, checkpoint: str | None = None, task: str | None = None
) -> tuple[TextRun, EncoderDecoder]:
    """A run and its network, or an encoder-decoder that was saved without a recipe as one.

    Args:
        place: of `macaron_tf.load`.
        checkpoint: of a run, see `Run.load_network`.
        task: answered by a model whose folder does not say which.
    """
    location = locate(place)
    if not location.without_recipe:
        opened = TextRun.open(location.folder)
        if task not in (None, opened.recipe.task, *opened.recipe.tasks):
            raise UserError(f"{place} answers {opened.recipe.task}: leave --task {task} out")
        return opened, opened.load_network(checkpoint or location.checkpoint)
    found = load(place)
    if not isinstance(found.network, EncoderDecoder) or found.vocabulary is None:
        raise UserError(
            f"{place} is no encoder-decoder with a vocabulary: give a run of `text_to_text train`, "
            "or a T5 or BART"
        )
    answers = found.answers
    if not task and not answers:
        raise UserError(f"{place} does not say which task it answers: give --task, such as sst2")
    recipe = recipe_for(task or answers["task"], found, place, "-")
    longest = found.config.longest or recipe.max_source
    recipe = recipe.changed(
        max_source=min(answers.get("longest", recipe.max_source), longest),
        max_target=min(answers.get("max_target", recipe.max_target), longest),
        starts=bool(answers.get("source_start", recipe.starts)),
    )
    return TextRun(location.folder, recipe, found.vocabulary), found.network
