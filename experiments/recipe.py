"""What a recipe is: one frozen value that holds every setting of a run."""

import ast
import dataclasses
import json
import types
import typing
from collections.abc import Iterable

from macaron_tf.data.batching import BatchingConfig
from macaron_tf.data.cleaning import CleaningConfig
from macaron_tf.data.normalization import NormalizationConfig
from macaron_tf.data.tokenization import SamplingConfig
from macaron_tf.decoding.config import BeamSearchConfig
from macaron_tf.errors import UserError
from macaron_tf.evaluation.bleu import TranslationMetric
from macaron_tf.models import EncoderDecoderConfig, catalog
from macaron_tf.training.config import TrainingConfig


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which text a translation model learns from, and how it becomes batches.

    Attributes:
        source: what `macaron_tf.data.read_pairs` reads, such as `tfds:multi30k/de-en`.
        source_language, target_language: codes such as "en".
        train_split, validation_split, test_split: names of splits. Where the source has no
            such split, a run that needs it says so.
        vocabulary_size: pieces of the joint vocabulary.
        normalization: of every line, before it is cut into pieces.
        cleaning: which training pairs are kept.
        batching: how rows become batches of a few static shapes.
        sampling: BPE-dropout of the training text.
        validation_lines: how many lines of the validation split are translated for BLEU while
            training; None = all.
    """

    source: str
    source_language: str
    target_language: str
    train_split: str = "train"
    validation_split: str = "validation"
    test_split: str = "test"
    vocabulary_size: int = 10_000
    normalization: NormalizationConfig = NormalizationConfig()
    cleaning: CleaningConfig = CleaningConfig()
    batching: BatchingConfig = BatchingConfig()
    sampling: SamplingConfig = SamplingConfig()
    validation_lines: int | None = None

    def __post_init__(self):
        if self.vocabulary_size < 8:
            raise UserError(f"data.vocabulary_size is {self.vocabulary_size}: it must be 8 or more")
        if self.validation_lines is not None and self.validation_lines < 1:
            raise UserError(
                f"data.validation_lines is {self.validation_lines}: give 1 or more, or None for all"
            )


@dataclasses.dataclass(frozen=True)
class TranslationRecipe:
    """Every setting of a translation run.

    Attributes:
        model: a name of the model catalog.
        model_options: fields of the model's configuration that differ, as (name, value) pairs.
        data, training, decoding, metric: see their classes.
        label_smoothing: of the objective.
        average_last: checkpoints averaged by `translate average` when no number is given.
    """

    model: str
    data: DataConfig
    training: TrainingConfig
    decoding: BeamSearchConfig
    metric: TranslationMetric
    model_options: tuple[tuple[str, typing.Any], ...] = ()
    label_smoothing: float = 0.1
    average_last: int = 5

    def __post_init__(self):
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"label_smoothing is {self.label_smoothing}: it must lie in [0, 1)")
        if self.average_last < 1:
            raise UserError(f"average_last is {self.average_last}: it must be 1 or more")

    def model_config(self, vocab_size: int | None = None) -> EncoderDecoderConfig:
        """The model's configuration, at a vocabulary's size.

        Raises:
            UserError: there is no such model or option, or a value is out of its range.
        """
        options = dict(self.model_options)
        if "vocab_size" in options:
            raise UserError(
                "model.vocab_size follows from the vocabulary: set data.vocabulary_size"
            )
        try:
            return catalog.config(self.model, vocab_size=vocab_size or 8, **options)
        except ValueError as error:
            raise UserError(f"model: {error}") from error

    def to_json(self) -> str:
        """The recipe as JSON; `recipe_from_json` reads it back."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def recipe_from_json(text: str, where: str) -> TranslationRecipe:
    """Reads what `TranslationRecipe.to_json` wrote.

    Args:
        text: the JSON.
        where: the file's name, for errors.

    Raises:
        UserError: the text is not such a recipe.
    """
    try:
        return _from_dict(TranslationRecipe, json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{where} is not a recipe that this version wrote: {error}") from error


def _from_dict(cls, values: dict):
    hints = typing.get_type_hints(cls)
    fields = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(hints.get(name)):
            value = _from_dict(hints[name], value)
        elif name == "model_options":
            value = tuple((option, setting) for option, setting in value)
        fields[name] = value
    return cls(**fields)


def override(recipe: TranslationRecipe, settings: Iterable[str]) -> TranslationRecipe:
    """The recipe with settings replaced, each given as `path=value`.

    A new `data.target_language` is also the language that BLEU tokenizes.

    Args:
        recipe: where to start.
        settings: such as `training.max_steps=500`, `data.source=tsv:pairs.tsv`,
            `model.dropout=0.2` (a field of the model's configuration) or `model=macaron_small`.

    Raises:
        UserError: no such path, or a value of another type; it lists what exists.
    """
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting}: write it as PATH=VALUE, such as training.seed=2")
        if path.startswith("model."):
            options = {**dict(recipe.model_options), path.removeprefix("model."): _literal(text)}
            recipe = dataclasses.replace(recipe, model_options=tuple(options.items()))
        else:
            recipe = _replace(recipe, path.split("."), text, setting)
            if path == "data.target_language":
                metric = dataclasses.replace(recipe.metric, language=text)
                recipe = dataclasses.replace(recipe, metric=metric)
    return recipe


def _replace(node, path: list[str], text: str, setting: str):
    names = [field.name for field in dataclasses.fields(node)]
    if path[0] not in names:
        raise UserError(
            f"--set {setting}: there is no {path[0]!r} here; there are {', '.join(names)}"
        )
    current = getattr(node, path[0])
    if dataclasses.is_dataclass(current):
        if len(path) == 1:
            inner = ", ".join(f"{path[0]}.{field.name}" for field in dataclasses.fields(current))
            raise UserError(f"--set {setting}: choose one of {inner}")
        return dataclasses.replace(node, **{path[0]: _replace(current, path[1:], text, setting)})
    if len(path) > 1:
        raise UserError(
            f"--set {setting}: {path[0]} has no parts, but {'.'.join(path[1:])} follows"
        )
    hint = typing.get_type_hints(type(node))[path[0]]
    return dataclasses.replace(node, **{path[0]: _convert(text, hint, setting)})


def _convert(text: str, hint, setting: str):
    """The text as a value of the annotated type: str, bool, int, float, or one of those or None."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if str in kinds:
        return text
    value = _literal(text)
    if value is None and type(None) in kinds:
        return None
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) in kinds:
        return value
    wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
    raise UserError(f"--set {setting}: the value must be {wanted}")


def _literal(text: str):
    """`3`, `0.1`, `True`, `None` as what they are, any other text as itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
