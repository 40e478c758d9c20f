"""Every setting of a text-to-text run."""

import dataclasses

from experiments.recipe import Recipe
from macaron_tf.data.tasks.definitions import TASKS
from macaron_tf.data.translation import BatchingConfig
from macaron_tf.decoding import BeamSearchConfig
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderDecoderConfig, catalog
from macaron_tf.special_ids import EOS

# Tasks of pairs of texts, and what stands before the first.
PREFIXES = {"summarization": "summarize: ", "translation": "translate: "}
# Those whose answers are words: a class's name or a score.
TEXT_TASKS = tuple(name for name, task in TASKS.items() if task.kind == "classification")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRecipe(Recipe):
    """Every setting of a text-to-text run.

    Attributes:
        task: of GLUE or SuperGLUE, by its name; or `"summarization"` or `"translation"`.
        source: where its examples come from, see
            `macaron_tf.data.tasks.reading.read_examples`; of
            the last two pairs of texts, see `macaron_tf.data.read_pairs`.
        fields: of these two: what the source calls a text and what it becomes: languages, or
            fields of a record.
        init: where the weights come from: a run of `experiments.pretrain`, or `hugging-face:DIR`.
        starts: whether sources and targets begin with [CLS], the decoder reading [SEP] before it,
            as BART's of Hugging Face; the runs trained here do without.
        sentinel_rows: rows of the model's table beyond the vocabulary's.
        max_source, max_target: greatest number of tokens of each side, EOS (and [CLS]) included;
            what is longer is cut.
        label_smoothing: of the objective.
        batching: how pairs become batches.
        decoding: of answers.
        validation_examples: how many answers are written for a validation; None = all.
    """

    kind = "text_to_text"
    command = "python -m experiments.text_to_text"

    task: str
    source: str
    fields: tuple[str, str] = ("source", "target")
    init: str
    starts: bool = False
    sentinel_rows: int = 0
    max_source: int = 128
    max_target: int = 32
    label_smoothing: float = 0.0
    batching: BatchingConfig = BatchingConfig()
    decoding: BeamSearchConfig = BeamSearchConfig()
    validation_examples: int | None = None

    def check(self) -> None:
        known = (*TEXT_TASKS, *PREFIXES)
        if self.task not in known:
            raise UserError(f"task is {self.task!r}: give one of {', '.join(known)}")
        if not self.source:
            raise UserError(f"the task {self.task!r} has no data of its own: give --source")
        for name in ("max_source", "max_target"):
            least = 3 if self.starts else 2
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}: it must be {least} or more")
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"label_smoothing is {self.label_smoothing}: it must lie in [0, 1)")
        if self.validation_examples is not None and self.validation_examples < 1:
            raise UserError(
                f"validation_examples is {self.validation_examples}: give 1 or more, or None"
            )

    @property
    def before(self) -> tuple[int, ...]:
        """What the decoder reads before BOS."""
        return (EOS,) if self.starts else ()

    def model_config(self, vocab_size: int | None = None) -> EncoderDecoderConfig:
        if vocab_size is not None:
            vocab_size += self.sentinel_rows
        config = super().model_config(vocab_size)
        if not isinstance(config, EncoderDecoderConfig):
            known = ", ".join(catalog.names(EncoderDecoderConfig))
            raise UserError(f"model: {self.model} is no encoder-decoder; there are {known}")
        for name in ("max_source", "max_target"):
            if config.longest is not None and config.longest < getattr(self, name):
                raise UserError(
                    f"{name} is {getattr(self, name)}, but the model has {config.longest} "
                    f"positions: set {name}={config.longest} or less"
                )
        return config
