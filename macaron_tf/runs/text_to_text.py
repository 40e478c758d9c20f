"""Text-to-text fine-tuning: examples (`TextPairs`) and recipe (`TextRecipe`)."""

import dataclasses
import itertools
import typing
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from macaron_tf.data.sampler import Draw, MixingConfig
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.tasks.definitions import TASKS, get_task
from macaron_tf.data.tasks.questions import Answer
from macaron_tf.data.tasks.text_tasks import (
    PREFIXES,
    SUMMARIES,
    as_texts,
    questions_as_texts,
    read_answers,
)
from macaron_tf.data.translation import BatchingConfig, CleaningConfig, TranslationData
from macaron_tf.decoding import BeamSearchConfig
from macaron_tf.errors import UserError, nearest
from macaron_tf.evaluation import glue
from macaron_tf.evaluation.answers import score_answers
from macaron_tf.evaluation.language import lead, rouge
from macaron_tf.evaluation.translation import TranslationMetric, evaluate_translations
from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig
from macaron_tf.models.model_parts import ModelParts
from macaron_tf.objectives import TranslationObjective
from macaron_tf.runs.recipe import MAY_CHANGE, Recipe
from macaron_tf.runs.run import Inputs, Plan, Run
from macaron_tf.runs.starts import Start, read_start
from macaron_tf.runs.trainer import plan_of_pairs, warn_truncated
from macaron_tf.settings import INT32, Count, Dropout, Natural, ReadIf, Settings
from macaron_tf.tasks import TextToTextSettings, labelled
from macaron_tf.text import PieceVocabulary, TextVocabulary
from macaron_tf.training import TrainingConfig

_ENDS = ("", "_ratio", "_offset")  # of the settings that limit the length of beam search
# Tasks whose answer is a class, a score or a span of the context.
TEXT_TASKS = tuple(
    name for name, task in TASKS.items() if task.kind == "classification" or name == "squad"
)


@dataclasses.dataclass(frozen=True)
class TextTask(Settings):
    """Settings of a text-to-text task.

    Attributes:
        name: name of a GLUE or SuperGLUE task, `"squad"`, `"summarization"`, `"cnn_dailymail"`,
            `"xsum"` or `"translation"`. Several names, joined by +, train one model on several
            tasks.
        prefix: beginning of each source in summarization or translation, such as "translate English
            to German: "; `None` means "summarize: " or "translate: ".
        starts: whether sources and targets begin with [CLS], as in the BART models of Hugging
            Face. The decoder input then begins with [SEP] [CLS]. The value is `False` for a model
            that was pre-trained here.
        sentinel_rows: number of additional embedding rows for the sentinel tokens of T5.
        label_smoothing: label smoothing of the training loss.
        decoding: settings of beam search for answers.
    """

    section: typing.ClassVar[str] = "task"

    name: str
    prefix: Annotated[str | None, ReadIf(lambda recipe: recipe.task.name in PREFIXES)] = None
    starts: bool = False
    sentinel_rows: Natural = 0
    label_smoothing: Dropout = 0.0
    decoding: BeamSearchConfig = BeamSearchConfig()

    def check(self) -> None:
        for name in self.names:
            if name not in (choices := (*TEXT_TASKS, *PREFIXES)):
                known = f"{', '.join(choices)}{nearest(name, choices)}"
                raise self.error(f"name is {name!r}, but must be one of {known}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.name.split("+"))


@dataclasses.dataclass(frozen=True)
class TextData(Settings):
    """Settings of pairs of texts and their batches.

    Attributes:
        source: source of the examples, in a form that `read_examples` (GLUE, SuperGLUE),
            `read_questions` (SQuAD) or `read_pairs` (summarization, translation) accepts; `None`
            means the default source of the task. In a run of several tasks, each task with a
            default source reads its default source instead.
        fields: names of the source field and the target field of text pairs, such as languages;
            `None` means the fields of the task's default source.
        max_source, max_target: maximum number of tokens in a source or target, including EOS and
            [CLS]. Longer texts are truncated.
        batching: batch sizes and shapes.
        mixing: sampling rates of several tasks.
        validation_examples: number of validation examples for which each validation generates
            answers; `None` means all examples.
    """

    section: typing.ClassVar[str] = "data"

    source: str | None = None
    fields: tuple[str, str] | None = None
    max_source: Annotated[int, Ge(2), INT32] = 128
    max_target: Annotated[int, Ge(2), INT32] = 32
    batching: BatchingConfig = BatchingConfig()
    mixing: Annotated[MixingConfig, ReadIf(lambda recipe: len(recipe.task.names) > 1)] = (
        MixingConfig()
    )
    validation_examples: Count | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRecipe(Recipe):
    """Settings of a text-to-text run."""

    kind = "text_to_text"
    configs = (EncoderDecoderConfig,)
    lengths = ("data.max_source", "data.max_target")
    evaluation_settings = ("task.decoding.",)
    may_change = (*MAY_CHANGE, "task.decoding.", "data.validation_examples")
    # `data.max_target` limits the length of answers, see `TextToTextSettings.lines`.
    derived = ("task.name", *(f"task.decoding.max_length{end}" for end in _ENDS))

    task: TextTask
    data: TextData = TextData()

    def check(self) -> None:
        task, source = self.task, self.data.source
        if source and len(task.names) > 1 and all(default_examples(name)[0] for name in task.names):
            raise self.data.error(f"source={source} has no effect on {task.name}: leave it out")

    def examples_of(self, task: str) -> tuple[str, tuple[str, str]]:
        """Returns the source of a task's examples, and the names of the two text fields."""
        default, fields = default_examples(task)
        if len(self.task.names) > 1 and default:
            return default, fields
        source = self.data.source or default
        if not source:
            raise UserError(f"the task {task!r} has no default source: set data.source")
        return source, self.data.fields or fields

    def make_objective(self, static_shapes: bool = False) -> TranslationObjective:
        return TranslationObjective(
            self.task.label_smoothing, skip_padding=not static_shapes, starts=self.task.starts
        )

    def task_settings(self) -> TextToTextSettings:
        task, lengths = self.task, (self.data.max_target, self.data.max_source)
        limits = task.decoding.options("min_length", "no_repeat_ngram_size")
        return TextToTextSettings(task.name, *lengths, task.starts, task.prefix, **limits)

    def card(self) -> dict:
        return {**super().card(), "trained_length": self.data.max_source}

    def model_config(self, vocab_size: int | None = None) -> EncoderDecoderConfig:
        if vocab_size is not None:
            vocab_size += self.task.sentinel_rows
        return super().model_config(vocab_size)

    def read_start(self, inputs: Inputs, earlier: Run | None) -> Start:
        if not self.init:
            raise UserError("--init is missing: give a pre-trained T5 or BART, such as runs/t5")
        return read_start(self.init, ["writer"], trust_code=inputs.trust_code)

    def started(self, start: Start) -> "TextRecipe":
        return recipe_of_model(self, start.source)

    def text_vocabulary(self, vocabulary: PieceVocabulary) -> TextVocabulary:
        """Returns the vocabulary that tokenizes and truncates source and target lines."""
        return TextVocabulary(
            vocabulary, self.data.max_source, self.data.max_target, self.task.starts
        )

    def plan(self, run: Run, start: Start, inputs: Inputs) -> Plan:
        self.model_config()
        config = self.data
        for name in self.task.names:
            self.examples_of(name)  # raises for a task without a source
        run = dataclasses.replace(run, vocabulary=start.vocabulary)
        max_tokens = max(config.max_source, config.max_target)
        cleaning = CleaningConfig(max_length=None, max_tokens=max_tokens)
        training_sets, validation_sets = (
            [TextPairs.read(self, name, split, inputs.tfds) for name in self.task.names]
            for split in ("train", "validation")
        )
        sizes = [len(examples.pairs) for examples in training_sets]
        task_indices = np.repeat(np.arange(len(sizes)), sizes)  # (N,)

        def make_draw(pair_indices: np.ndarray) -> Draw:
            counts = np.bincount(task_indices[pair_indices], minlength=len(sizes))
            rates = zip(self.task.names, counts, config.mixing.rates(counts), strict=True)
            listing = (f"{name} {rate:.3f} ({count:,} pairs)" for name, count, rate in rates)
            print(f"sampling rates of the tasks: {', '.join(listing)}", flush=True)
            return config.mixing.make_draw(task_indices[pair_indices])

        vocabulary = self.text_vocabulary(start.vocabulary)

        def data_of(sets: Sequence[TextPairs], make_draw=None) -> TranslationData:
            pairs = [pair for examples in sets for pair in examples.pairs]
            options = {"cleaning": cleaning, "batching": config.batching, "make_draw": make_draw}
            return TranslationData.from_pairs(pairs, vocabulary, **options)

        data = data_of(training_sets, make_draw if len(sizes) > 1 else None)
        validation_data = data_of(validation_sets)
        print(f"{self.task.name}: {data.summary()}", flush=True)
        warn_truncated(data.tokens.source.lengths, config.max_source, "data.max_source")
        warn_truncated(data.tokens.target.lengths, config.max_target, "data.max_target")
        count = config.validation_examples
        scored_pairs = [examples.pairs[:count] for examples in validation_sets]

        def score(answers: Sequence[str]) -> dict[str, float]:
            remaining, metrics = iter(answers), {}
            for examples, pairs in zip(validation_sets, scored_pairs, strict=True):
                scores = examples.score([*itertools.islice(remaining, len(pairs))])
                for name, value in scores.items():
                    metrics[_metric_name(name, examples.task, self)] = value
            means = [metrics[_metric_name("score", name, self)] for name in self.task.names]
            return {**metrics, "score": sum(means) / len(means)}

        return plan_of_pairs(
            run,
            data,
            validation_data,
            [*itertools.chain.from_iterable(scored_pairs)],
            score,
            "source: {}\ntarget: {}\nanswer: {}",
            initialize=start.copy_to,
            note=f", from {self.init}",
            next=("evaluate {run}{data}", "predict {run} --input FILE"),
        )


def default_examples(task: str) -> tuple[str, tuple[str, str]]:
    """Returns a task's default source, or "" without one, and the names of the two text fields."""
    if task in SUMMARIES:
        return SUMMARIES[task]
    return (TASKS[task].source or "" if task in TASKS else ""), ("source", "target")


@dataclasses.dataclass(frozen=True)
class TextPairs:
    """Examples in one split of a task, as pairs of a source text and a target text.

    Attributes:
        labels: labels of the examples, or correct answers to the questions; `None` for
            summarization and translation, whose targets are texts.
        groups: group index of each example; `None` if the metrics do not group examples. See
            `Examples`.
        language: in translation, code of the target language.
        prefix: beginning of each source in summarization and translation.
    """

    task: str
    split: str
    pairs: list[tuple[str, str]]
    labels: np.ndarray | list[tuple[Answer, ...]] | None = None
    groups: np.ndarray | None = None
    language: str = ""
    prefix: str = ""

    @classmethod
    def read(
        cls, recipe: TextRecipe, name: str, split: str, tfds: Tfds | None = None
    ) -> "TextPairs":
        """Reads one split of the task `name`. "validation" means its first validation split."""
        source, fields = recipe.examples_of(name)
        if name in PREFIXES:
            prefix = PREFIXES[name] if recipe.task.prefix is None else recipe.task.prefix
            pairs = read_pairs(source, split, *fields, tfds)
            # Joins the lines of each text, because an e-mail has several lines.
            lines = ([" ".join(text.split()) for text in pair] for pair in pairs)
            texts = [(prefix + text, answer) for text, answer in lines]
            return cls(name, split, texts, language=fields[1], prefix=prefix)
        task = get_task(name)
        if split == "validation":
            split = task.validation_splits[0]
        examples = labelled(task).read(split, tfds, source)
        if task.kind == "spans":
            return cls(name, split, questions_as_texts(examples), examples.labels)
        return cls(name, split, as_texts(task, examples), examples.labels, examples.groups)

    def score(self, answers: Sequence[str]) -> dict[str, float]:
        """Computes the metrics of the task from generated answers to the first examples.

        The value of "score" is the main metric or, for GLUE and SuperGLUE, the mean of the task's
        metrics.
        """
        count = len(answers)
        targets = [target for _, target in self.pairs[:count]]
        if self.task in SUMMARIES:
            metrics = rouge(answers, targets)
            return {**metrics, "score": metrics["rougeL"]}
        if self.task == "translation":
            # The tokenizer of BLEU depends on the language of the references.
            metric = TranslationMetric(self.language).for_references(targets)
            scores = evaluate_translations(answers, targets, metric)
            return {"bleu": scores["bleu"], "chrf": scores["chrf"], "score": scores["bleu"]}
        task, labels = get_task(self.task), self.labels[:count]
        if task.kind == "spans":
            truths = [[answer.text for answer in correct] for correct in labels]
            metrics = score_answers(answers, truths)
            return {**metrics, "score": metrics["f1"]}
        groups = None if self.groups is None else self.groups[:count]
        return glue.score(task, read_answers(task, answers, labels), labels, groups)

    def baselines(self) -> dict[str, dict[str, float]]:
        """Computes the ROUGE of "lead-1" and "lead-3", the first sentences of each text."""
        if self.task not in SUMMARIES:
            return {}
        texts = [source.removeprefix(self.prefix) for source, _ in self.pairs]
        targets = [target for _, target in self.pairs]
        return {
            f"lead-{count}": rouge([lead(text, count) for text in texts], targets)
            for count in (1, 3)
        }


# T5's training settings for fine-tuning (Raffel et al. 2020, section 3.1.2).
T5_TRAINING = TrainingConfig(
    max_steps=2_000,
    optimizer="adafactor",
    learning_rate=1e-3,
    schedule="constant",
    warmup_steps=0,
    validate_every=250,
    best_metric="score",
)
# Differences of BART's released recipe.
_BART_TRAINING = dict(
    optimizer="adam",
    learning_rate=3e-5,
    schedule="linear",
    warmup_steps=200,
    beta_2=0.999,
    weight_decay=0.01,
    decay_vectors=False,
    clip_norm=0.1,
)


# Published lengths and searches of T5 and of BART, by task. T5's are from Raffel et al. 2020
# (section 3.1.4: beam size 4 and length penalty 0.6 for CNN/Daily Mail) and from the configuration
# that Hugging Face released with it. BART's are from fairseq's examples/bart, where `max_len_b`,
# 140 and 60, does not count EOS. XSum is not in T5's paper, so its lengths are BART's.
_T5_SUMMARIES: dict[str, dict[str, dict[str, Any]]] = {
    "cnn_dailymail": {
        "task": {"decoding": BeamSearchConfig(min_length=30, no_repeat_ngram_size=3)},
        "data": {"max_source": 512, "max_target": 200},
    },
    "xsum": {
        "task": {"decoding": BeamSearchConfig(min_length=10, no_repeat_ngram_size=3)},
        "data": {"max_source": 512, "max_target": 61},
    },
}
_FAIRSEQ: dict[str, Any] = {"length_penalty_name": "fairseq", "no_repeat_ngram_size": 3}
_CNN = BeamSearchConfig(length_penalty=2.0, min_length=55, **_FAIRSEQ)
_XSUM = BeamSearchConfig(beam_size=6, length_penalty=1.0, min_length=10, **_FAIRSEQ)
_BART_SUMMARIES: dict[str, dict[str, dict[str, Any]]] = {
    "cnn_dailymail": {
        "task": {"prefix": "", "decoding": _CNN},
        "data": {"max_source": 1024, "max_target": 141},
    },
    "xsum": {
        "task": {"prefix": "", "decoding": _XSUM},
        "data": {"max_source": 1024, "max_target": 61},
    },
}


def recipe_of_task(name: str, model: str, max_source: int = 128) -> TextRecipe:
    """Returns a recipe with T5's settings for a task, which `recipe_of_model` adapts."""
    published = _T5_SUMMARIES.get(name, {"task": {}, "data": {}})
    return TextRecipe(
        model=model,
        task=TextTask(name, **published["task"]),
        data=TextData(**{"max_source": max_source, **published["data"]}),
        training=T5_TRAINING,
    )


def recipe_of_model(recipe: TextRecipe, model: ModelParts) -> TextRecipe:
    """Returns the recipe with the sizes and the token ids of a pre-trained model.

    T5's training settings become BART's if Adam trained the model. The settings of T5's summaries
    become those of BART's, except settings that the user changed.
    """
    training, card = recipe.training, model.card
    denoising = card.objective == "denoising"
    if denoising:
        usual = recipe_of_task(recipe.task.name, recipe.model)
        for part, published in _BART_SUMMARIES.get(recipe.task.name, {}).items():
            own, before = getattr(recipe, part), getattr(usual, part)
            kept = {n: v for n, v in published.items() if getattr(own, n) == getattr(before, n)}
            recipe = recipe.changed(**{part: kept})
    optimizer = card.optimizer or ("adam" if denoising else "adafactor")
    if training == T5_TRAINING and optimizer != "adafactor":
        training = dataclasses.replace(training, **_BART_TRAINING)
    longest = recipe.data.max_source
    writes_text = {*recipe.task.names} <= {*PREFIXES}
    return recipe.changed(
        model=card.model,
        model_options=model.model_options,
        task=dict(
            starts=bool(model.settings and model.settings.starts),
            sentinel_rows=model.config.vocab_size - model.vocabulary.size,
            label_smoothing=0.1 if denoising and writes_text else recipe.task.label_smoothing,
        ),
        data=dict(max_source=min(longest, model.config.longest or longest)),
        training=dataclasses.replace(training, dtype_policy=model.network.dtype_policy.name),
    )


def _metric_name(metric: str, task: str, recipe: TextRecipe) -> str:
    """Returns the name under which validation reports a metric of a task.

    In a run of several tasks, the prefix is the name of the task, as in "sst2_accuracy". In a run
    of one task, the prefix is "task_": "task_accuracy" is the accuracy of answers, and "accuracy"
    is the accuracy of tokens. The metric "score" and the metrics of summarization and translation
    have no prefix in a run of one task.
    """
    if len(recipe.task.names) > 1:
        return f"{task}_{metric}"
    return metric if task in PREFIXES or metric == "score" else f"task_{metric}"


def answers_of(model: ModelParts, location: str, task: str | None) -> TextToTextSettings:
    """Returns the settings of a model's answers to a task.

    Args:
        model: the model, which may have been saved without a recipe or come from another library.
        task: name of the task; `None` means the task that the model was trained for.
    """
    if not isinstance(model.network, EncoderDecoder) or model.vocabulary is None:
        raise UserError(f"{location} is not an encoder-decoder with a vocabulary: give another")
    settings = model.settings
    if isinstance(settings, TextToTextSettings):
        if task not in (None, settings.task, *settings.task.split("+")):
            raise UserError(f"{location} was trained for {settings.task}: leave task={task} out")
        return settings
    if not task:
        raise UserError(f"{location} lacks the task that it was trained for: set task=NAME")
    recipe = recipe_of_task(task, model.card.model)
    settings = recipe_of_model(recipe, model).task_settings()
    longest = model.config.longest or settings.longest
    lengths = {n: min(v, longest) for n, v in settings.options("longest", "max_target").items()}
    return dataclasses.replace(settings, **lengths)
