"""Training of encoders on a task's examples, with the training length in epochs."""

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Annotated

import keras
import tensorflow as tf
from annotated_types import Gt, Lt

from macaron_tf.data.batches import EncodedExamples, ExampleBatches
from macaron_tf.distribution import is_tpu
from macaron_tf.errors import UserError, warn
from macaron_tf.hub.tokenizers.reading import refuse_lower_case
from macaron_tf.models import ElmoConfig, catalog
from macaron_tf.runs.recipe import MAY_CHANGE, Recipe
from macaron_tf.runs.run import Inputs, Plan, Run
from macaron_tf.runs.starts import Start, read_start
from macaron_tf.settings import Count, Dropout
from macaron_tf.text import load_encoder_vocabulary
from macaron_tf.training.session import Validate

NOTHING = "random weights"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecipe(Recipe):
    """Recipe of an encoder, with the training length in epochs.

    An epoch is a pass over the training set. When the size of the training set is known, `resolved`
    converts epochs and fractions into update counts in `training`. The run's recipe.json contains
    the epochs and the update counts. If a user sets `training.max_steps`, `training.warmup_steps`
    or `training.validate_every`, the corresponding setting `epochs`, `warmup_fraction` or
    `validate_epochs` becomes `None`.

    Attributes:
        task: name of the task; `macaron_tf.data.tasks.definitions` lists the tasks.
        source: source of the examples; see `macaron_tf.data.tasks.examples`. `None` means that
            neither the user nor the task names a source.
        init: pre-trained model to start from, in a form that `macaron_tf.load` accepts;
            `None` means random weights.
        batch_size: number of examples in a micro-batch or, if long texts are read in windows,
            number of windows.
        epochs: number of passes over the training set; `None` means `training.max_steps` updates.
        warmup_fraction: fraction of all updates that is warm-up; `None` means
            `training.warmup_steps` updates.
        validate_epochs: number of epochs between validations; `None` means
            `training.validate_every` updates.
        max_length: maximum number of tokens in a row, including special tokens.
    """

    # These settings may differ when a run is resumed, because the update counts that they
    # determine are compared instead.
    may_change = (*MAY_CHANGE, "epochs", "warmup_fraction", "validate_epochs")
    training_flags = ("vocabulary", "lower_case")
    by_argument: typing.ClassVar = {"task": "the recipe with its task, as in finetune:sst2,"}
    start_settings = ("init", "model")
    lengths = ("max_length",)

    task: str
    source: str | None
    init: str | None = None
    batch_size: Count = 32
    epochs: Annotated[float, Gt(0), Lt(1e6)] | None = 3.0
    warmup_fraction: Dropout | None = 0.1
    validate_epochs: Annotated[float, Gt(0), Lt(1e6)] | None = 1.0
    max_length: Count = 128

    def card(self) -> dict:
        return {**super().card(), "trained_length": self.max_length}

    def follow(self, path: str) -> "EpochRecipe":
        """Returns the recipe without the setting that a new value of `path` overrides."""
        computed = {
            "training.max_steps": "epochs",
            "training.warmup_steps": "warmup_fraction",
            "training.validate_every": "validate_epochs",
        }
        return self.changed(**{computed[path]: None}) if path in computed else self

    def resolved(self, num_examples: int) -> "EpochRecipe":
        """Returns the recipe with update counts for a training set of `num_examples` examples."""
        training = self.training
        updates_per_epoch = -(-num_examples // self.batch_size) / training.accumulation_steps
        max_steps = training.max_steps
        if self.epochs is not None:
            max_steps = max(round(self.epochs * updates_per_epoch), 1)
        changes = {"max_steps": max_steps}
        if self.warmup_fraction is not None:
            changes["warmup_steps"] = min(round(self.warmup_fraction * max_steps), max_steps - 1)
        if self.validate_epochs is not None:
            changes["validate_every"] = min(
                max(round(self.validate_epochs * updates_per_epoch), 1), max_steps
            )
        return self.changed(training=changes)

    def read_start(self, inputs: Inputs, earlier: Run | None) -> Start:
        vocabulary, lower_case = inputs.vocabulary, inputs.lower_case
        if self.init:
            options = {"trust_code": inputs.trust_code, "vocabulary": vocabulary}
            return read_start(self.init, lower_case=lower_case, **options)
        if earlier and vocabulary:
            raise UserError("--resume cannot be combined with --vocabulary: leave it out")
        if earlier:
            return Start(NOTHING, earlier.vocabulary)
        if not vocabulary:
            advice = "or random weights by --set model=NAME and the --vocabulary of a corpus"
            raise UserError(f"--init is missing: give a model, such as hugging-face:DIR, {advice}")
        refuse_lower_case(lower_case, f"--vocabulary {vocabulary}")
        if self.model in catalog.names(ElmoConfig):
            raise UserError(f"model={self.model} needs pre-trained weights: give --init RUN")
        return Start(NOTHING, load_encoder_vocabulary(vocabulary))

    def plan_of_examples(
        self,
        run: Run,
        examples: EncodedExamples,
        validation: Callable[[keras.Model], Validate],
        start: Start,
        strategy: tf.distribute.Strategy,
        **fields,
    ) -> Plan:
        """Plans the training on tokenized examples; `fields` are further fields of the plan."""
        batches = example_batches(examples, self.batch_size, strategy)
        print(f"{self.task}: {batches.summary()}", flush=True)
        return Plan(
            run=run,
            batches=functools.partial(batches.dataset, self.training.seed),
            validation=validation,
            fingerprint=batches.fingerprint(),
            counts={"examples": len(batches)},
            initialize=start.copy_to,
            note=f", from {start.given}",
            **fields,
        )


def warn_start(
    init: Start, recipe: EpochRecipe, language: str | None = None, mend: str = ""
) -> None:
    """Warns on stderr about unset languages, and about rows that are longer than in pre-training.

    Args:
        language: language of the texts; `None` means the first language of the model, and causes a
            warning if the model has several languages.
        mend: format string for the end of the warning about languages. The field `{}` is replaced
            by the model's other languages.
    """
    if len(init.languages) > 1 and not language:
        first, *other_languages = init.languages
        warn(
            f"the model reads all texts as {first}, the first language of {init.given}"
            + mend.format(", ".join(other_languages))
        )
    if init.trained_length is not None and recipe.max_length > init.trained_length:
        warn(
            f"max_length is {recipe.max_length}, but {init.given} was trained on rows of "
            f"at most {init.trained_length} tokens: set max_length={init.trained_length}, or "
            "expect worse results on longer rows"
        )


def example_batches(
    encoded: EncodedExamples, batch_size: int, strategy: tf.distribute.Strategy
) -> ExampleBatches:
    """Makes batches whose rows are padded to one of at most 4 lengths.

    Several lengths keep the padding short. With a `TPUStrategy`, all batches have the same length,
    because the model is compiled for each length.
    """
    return ExampleBatches(encoded, batch_size, shapes=1 if is_tpu(strategy) else 4)
