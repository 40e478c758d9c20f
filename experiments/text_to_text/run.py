"""Recipe (`TextRecipe`) and run folder (`TextRun`) of text-to-text fine-tuning."""

import dataclasses
import sys
import typing
from collections.abc import Mapping
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
from macaron_tf.pretrained import Pretrained
from macaron_tf.settings import INT32, Count, Dropout, Natural
from macaron_tf.text import PieceVocabulary, TextVocabulary
from macaron_tf.training import TrainingConfig

# Tasks whose answer is a class, a score or a span of the context.
TEXT_TASKS = tuple(
    name for name, task in TASKS.items() if task.kind == "classification" or name == "squad"
)
# Source and fields of e-mails and their subjects, from TensorFlow Datasets.
_SUMMARIZATION_EXAMPLES = ("tfds:aeslc", ("email_body", "subject_line"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRecipe(Recipe):
    """Settings of a text-to-text run.

    Attributes:
        task: name of a GLUE or SuperGLUE task, `"squad"`, `"summarization"` or `"translation"`.
            Several names, joined by +, train one model on several tasks.
        source: source of the examples, in a form that `read_examples` (GLUE, SuperGLUE),
            `read_questions` (SQuAD) or `read_pairs` (summarization, translation) accepts. In a run
            of several tasks, each task with a default source reads its default source instead.
        fields: names of the source field and the target field of text pairs, such as languages.
        mixing: sampling rates of several tasks.
        init: location of the pre-trained model, such as the folder of a pre-training run.
        starts: whether sources and targets begin with [CLS], as in the BART models of Hugging
            Face. The decoder input then begins with [SEP] [CLS]. The value is `False` for a model
            of `macaron pretrain`.
        sentinel_rows: number of additional embedding rows for the sentinel tokens of T5.
        max_source, max_target: maximum number of tokens in a source or target, including EOS and
            [CLS]. Longer texts are truncated.
        label_smoothing: label smoothing of the training loss.
        batching: batch sizes and shapes.
        decoding: settings of beam search for answers.
        validation_examples: number of validation examples for which each validation generates
            answers; `None` means all examples.
    """

    kind = "text_to_text"
    command = "macaron text_to_text"
    may_change: typing.ClassVar = (*MAY_CHANGE, "decoding.", "validation_examples")
    by_argument: typing.ClassVar = {
        "task": "TASK",
        "init": "--init",
        "source": "--source",
        # `max_target` limits the length of answers, see `TextRun.line_translator`.
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
            if task not in (choices := (*TEXT_TASKS, *PREFIXES)):
                suggestion = nearest(task, choices)
                raise self.error(
                    f"task is {task!r}, but must be one of {', '.join(choices)}{suggestion}"
                )
            if self.tasks.count(task) > 1:
                raise self.error(f"task={self.task!r} names {task!r} twice: name each task once")
            if not self.examples_of(task)[0]:
                raise UserError(f"the task {task!r} has no default source: give --source SOURCE")
        for name in ("max_source", "max_target"):
            if self.starts and getattr(self, name) < 3:
                raise UserError(f"{name} must be at least 3, for [CLS], one token and EOS")

    def unread(self) -> list[str]:
        return [*super().unread(), *(["mixing."] if len(self.tasks) == 1 else [])]

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.task.split("+"))

    def examples_of(self, task: str) -> tuple[str, tuple[str, str]]:
        """Returns the source of a task's examples, and the names of the two text fields."""
        source, fields = default_examples(task)
        return (source, fields) if source and len(self.tasks) > 1 else (self.source, self.fields)

    def with_source(self, source: str | None) -> Self:
        """Returns the recipe with `--source` as the source of the examples.

        Args:
            source: value of `--source`; `None` means the source of the recipe.

        Raises:
            UserError: `source` has no effect, because the recipe has several tasks and each task
                reads its default source.
        """
        have_defaults = all(default_examples(task)[0] for task in self.tasks)
        if source and have_defaults and len(self.tasks) > 1:
            raise UserError(
                f"--source {source} has no effect, because each task of {self.task} reads its "
                "default source: leave --source out"
            )
        return self.changed(source=source or self.source)

    @property
    def max_answer_tokens(self) -> int:
        """Maximum number of tokens in an answer, without EOS."""
        return self.max_target - 1 - self.starts

    def make_objective(self, static_shapes: bool = False) -> TranslationObjective:
        return TranslationObjective(
            self.label_smoothing, skip_padding=not static_shapes, starts=self.starts
        )

    @property
    def answers(self) -> dict[str, typing.Any]:
        """Keyword arguments of `TaskGenerator`; see `Pretrained.answers`."""
        return {
            "task": self.task,
            "longest": self.max_source,
            "max_target": self.max_target,
            "starts": self.starts,
        }

    def usage(self) -> dict:
        own = {"trained_length": self.max_source, "answers": self.answers}
        return {**super().usage(), **own}

    def model_config(self, vocab_size: int | None = None) -> EncoderDecoderConfig:
        if vocab_size is not None:
            vocab_size += self.sentinel_rows
        config = super().model_config(vocab_size)
        self.expect_model(config, EncoderDecoderConfig, "is not an encoder-decoder")
        for name in ("max_source", "max_target"):
            self.expect_positions(config, name, getattr(self, name))
        return config


def default_examples(task: str) -> tuple[str, tuple[str, str]]:
    """Returns a task's default source, and the names of the two text fields.

    The source is an empty string if the task has no default source.
    """
    if task == "summarization":
        return _SUMMARIZATION_EXAMPLES
    return (TASKS[task].source or "" if task in TASKS else ""), ("source", "target")


def recipe_for(task: str, start: Pretrained, init: str, source: str | None) -> TextRecipe:
    """Makes the recipe to fine-tune a pre-trained model on a task.

    A model that was trained by Adafactor, such as T5, is fine-tuned by Adafactor with a constant
    learning rate of 0.001 (Raffel et al. 2020, section 3.1.2). Any other model, such as BART, is
    fine-tuned by Adam with a learning rate of 3e-5 after warm-up (the released BART recipe).

    Args:
        task: name of the task, or several names joined by +.
        start: pre-trained model.
        init: value of `--init`.
        source: source of the examples; `None` means the default source of the task.

    Raises:
        UserError: the task is unknown, or has no default source although `source` is `None`.
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
    default_source, fields = default_examples(task)
    return TextRecipe(
        model=start.model,
        model_options=start.model_options,
        task=task,
        source=source or default_source,
        fields=fields,
        init=init,
        starts=bool(start.ends.get("source_start")),
        # The contexts of SQuAD need 512 tokens, the length in the T5 paper.
        max_source=min(512 if "squad" in task.split("+") else 128, start.config.longest or 512),
        sentinel_rows=start.config.vocab_size - start.vocabulary.size,
        label_smoothing=0.1 if denoising and {*task.split("+")} <= {*PREFIXES} else 0.0,
        training=training,
    )


@dataclasses.dataclass(frozen=True)
class TextRun(Run):
    """A text-to-text fine-tuning run of an encoder-decoder, finished or not."""

    recipe_class = TextRecipe

    @property
    def text_vocabulary(self) -> TextVocabulary:
        """Vocabulary that tokenizes and truncates source and target lines."""
        recipe = self.recipe
        return TextVocabulary(self.vocabulary, recipe.max_source, recipe.max_target, recipe.starts)

    def line_translator(
        self, network: EncoderDecoder, decoding: BeamSearchConfig | None = None
    ) -> LineTranslator:
        """Builds a `LineTranslator`; `decoding` is by default that of the recipe."""
        decoding = decoding or self.recipe.decoding
        return line_translator(network, self.vocabulary, self.recipe.answers, decoding)


def line_translator(
    network: EncoderDecoder,
    vocabulary: PieceVocabulary,
    answers: Mapping[str, typing.Any],
    decoding: BeamSearchConfig,
) -> LineTranslator:
    """Builds a `LineTranslator`, which generates the answer to each line of text.

    Args:
        network: trained network.
        vocabulary: vocabulary of the network.
        answers: see `TextRecipe.answers`.
        decoding: settings of beam search.
    """
    # The maximum length of an answer is the maximum target length in training. It does not
    # depend on the source. The search starts at BOS, and `prefix` has the ids before BOS.
    # A run of an earlier version names the ids at the beginning of its sources.
    starts, max_target = (
        bool(answers.get("starts", answers.get("source_start"))),
        answers["max_target"],
    )
    max_length = max_target - starts  # including EOS
    limits = dict(max_length_ratio=0.0, max_length_offset=max_length, max_length=max_length)
    # No limit for sources, because the translator truncates sources with a warning.
    return LineTranslator(
        network,
        TextVocabulary(vocabulary, sys.maxsize, max_target, starts),
        dataclasses.replace(decoding, **limits),
        max_source_length=answers["longest"] - 1,  # without EOS
        prefix=(vocabulary.special.end,) if starts else (),
    )


def answers_of(model: Pretrained, location: str, task: str | None) -> dict[str, typing.Any]:
    """Returns the settings of a model's answers to a task; see `TextRecipe.answers`.

    Args:
        model: the model, which may have been saved without a recipe or come from another library.
        location: location of the model.
        task: name of the task; `None` means the task that the model was trained for.
    """
    answers = dict(model.answers)
    if not isinstance(model.network, EncoderDecoder) or model.vocabulary is None:
        raise UserError(
            f"{location} is not an encoder-decoder with a vocabulary: give a run of `text_to_text "
            "train`, or a T5 or BART model with its tokenizer"
        )
    if not task and not answers:
        raise UserError(f"{location} does not record the task that it was trained for: give --task")
    if not answers:
        answers = recipe_for(task, model, location, "-").answers
        longest = model.config.longest or answers["longest"]
        return answers | {name: min(answers[name], longest) for name in ("longest", "max_target")}
    if task not in (None, answers["task"], *answers["task"].split("+")):
        raise UserError(
            f"{location} was trained for {answers['task']}, not for {task}: leave out --task {task}"
        )
    return answers
