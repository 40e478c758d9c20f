"""Run folder of pre-training (`PretrainingRun`), and the batches of a corpus."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from macaron_tf.data.corpus.reading import (
    PretrainingCorpus,
    language_batches,
    process_seed,
    stream_dataset,
    with_documents,
)
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.distribution import Workers
from macaron_tf.errors import UserError
from macaron_tf.io.paths import absolute
from macaron_tf.objectives import (
    MaskedLanguageObjective,
    PermutationObjective,
    PretrainingObjective,
    SpanBoundaryObjective,
    SpanCorruptionObjective,
)
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.runs.corpora import prepare_corpus, train_vocabulary, vocabulary_config
from macaron_tf.runs.pretraining_recipe import PretrainingRecipe
from macaron_tf.runs.run import Inputs, Plan, Run
from macaron_tf.runs.trainer import evaluate_model, needs_static_shapes
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.base import check_vocabulary

if TYPE_CHECKING:
    from macaron_tf.runs.starts import Start


@dataclasses.dataclass(frozen=True)
class PretrainingRun(Run):
    recipe_class = PretrainingRecipe

    training_flags = ("corpus", "vocabulary", "lower_case", "own_shards")
    trains_on_jax = True

    @classmethod
    def read_start(
        cls, recipe: PretrainingRecipe, inputs: Inputs, earlier: Run | None
    ) -> "Start | None":
        if recipe.init:
            # Imported late, because only --init needs the readers of other libraries.
            from macaron_tf.runs.starts import read_start

            options = {"lower_case": inputs.lower_case, "trust_code": inputs.trust_code}
            return read_start(recipe.init, ("encoder", "pair"), **options)
        if inputs.lower_case is not None:
            raise UserError(
                "--[no-]lower-case applies only to --init: set vocabulary.lower_case instead"
            )
        return None

    @classmethod
    def train_vocabulary(cls, recipe: PretrainingRecipe, tfds: Tfds | None) -> PieceVocabulary:
        return train_vocabulary(recipe, tfds)

    def plan(self, start: "Start | None", inputs: Inputs) -> Plan:
        recipe, earlier = self.recipe, self.earlier if inputs.resumes else None
        # Checks the settings before the data are read, which may take minutes. The settings of
        # corpus and vocabulary are compared later, because they come from the prepared corpus.
        recipe.model_config()
        objective = recipe.make_objective(needs_static_shapes(inputs.devices))
        recipe.check_metric(objective.metric_names)
        self.continued("corpus.", "vocabulary.")
        if inputs.vocabulary and (inputs.corpus or start):
            owner = "the model of --init" if start else "the corpus"
            raise UserError(f"{owner} already has a vocabulary: leave --vocabulary out")
        if folder := inputs.corpus or (earlier and earlier.data_record().get("corpus")):
            corpus = PretrainingCorpus.open(folder)
        else:
            own = start and start.vocabulary
            corpus = prepare_corpus(recipe, None, inputs.vocabulary, inputs.tfds, own)
        if start:
            check_vocabulary(start.vocabulary.hash, corpus.vocabulary.hash, recipe.init)
        check_corpus(recipe, corpus)
        rows = corpus.rows("train")
        if rows < recipe.batch_size:
            raise UserError(
                f"one batch needs {recipe.batch_size} training rows, but {corpus.folder} has only "
                f"{rows}: prepare a corpus with more text, or lower batch_size"
            )
        # The settings of the corpus and its vocabulary become those of the run.
        vocabulary = vocabulary_config(corpus.vocabulary)
        recipe = recipe.changed(corpus=corpus.config, vocabulary=vocabulary)
        workers, own_shards = Workers(inputs.devices), inputs.own_shards
        validation_data = validation_batches(recipe, corpus, objective)

        def initialize(network: keras.Model) -> None:
            if start and (random_parts := start.copy_to(network)):
                print(
                    f"parts that start from random weights, because {start.given} does not contain "
                    f"them: {', '.join(random_parts)}",
                    flush=True,
                )

        def explain(error: Exception) -> UserError | None:
            # A shard may have been damaged since the corpus was opened.
            return corpus.shard_error(error) if isinstance(error, tf.errors.OpError) else None

        example = "text_to_text:sst2" if objective.encoder_decoder else "finetune:sst2"
        commands = [f"train {example} {{run}}-sst2 --init {{run}}"]
        if objective.causal:
            commands.append('predict {run} "The story of"')
        elif isinstance(objective, MaskedLanguageObjective | SpanBoundaryObjective):
            commands.append('predict {run} "the [MASK] of the story"')
        return Plan(
            run=dataclasses.replace(self, recipe=recipe, vocabulary=corpus.vocabulary),
            batches=_batches(recipe, corpus, objective, workers, own_shards),
            validation=lambda network: lambda model, step: evaluate_model(model, validation_data),
            fingerprint=corpus.fingerprint,
            counts={"rows": rows, "corpus": str(absolute(corpus.folder))},
            per_worker=own_shards and workers.several,
            initialize=initialize,
            objective=objective,
            note=f"{f', from {recipe.init}' if start else ''}; {corpus.summary()}",
            next=commands,
            explain=explain,
        )

    def make_network(self) -> keras.Model:
        has_sentinels = isinstance(self.recipe.objective, SpanCorruptionObjective)
        sentinels = SENTINEL_ROWS if has_sentinels else 0
        return self.recipe.network(self.recipe.model_config(self.vocabulary.size + sentinels))

    def build_network(self, saved: bool = False) -> keras.Model:
        network = super().build_network(saved)
        if self.recipe.objective.has_memory and not saved:
            # Each replica has a memory for its own rows; see `macaron_tf.distribution.distributed`.
            mesh = keras.distribution.distribution()
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            num_replicas = mesh.num_model_replicas if mesh else replicas
            if self.recipe.batch_size % num_replicas:
                raise UserError(
                    f"batch_size is {self.recipe.batch_size}, but a memory on {num_replicas} "
                    f"devices needs a multiple of {num_replicas}"
                )
            rows = self.recipe.batch_size // replicas
            network.create_memory(rows, self.recipe.training.accumulation_steps)
        return network

    def memory(self, network: keras.Model, use: str = "training") -> Sequence[keras.Variable]:
        return network.memories[use].variables if self.recipe.objective.has_memory else ()


def _batches(
    recipe: PretrainingRecipe,
    corpus: PretrainingCorpus,
    objective: PretrainingObjective,
    workers: Workers,
    own_shards: bool,
) -> Callable[[int], tf.data.Dataset]:
    """Returns a function from the first micro-batch's index to the endless training batches."""
    batch_size, seed, mask_seed = recipe.batch_size, recipe.training.seed, recipe.training.seed
    if objective.has_memory and own_shards:
        raise UserError(
            f"objective {objective.name!r} reads texts in order: leave --own-shards out"
        )
    if own_shards and workers.several:
        if keras.backend.backend() == "jax":
            raise UserError(
                "--own-shards works only with --engine tensorflow: leave --own-shards out"
            )
        if corpus.config.batch_alpha is not None:
            raise UserError(
                "corpus.batch_alpha needs the files of all languages: leave --own-shards out"
            )
        if batch_size % workers.count:
            raise UserError(
                f"batch_size is {batch_size}, but --own-shards needs a multiple of {workers.count}"
            )
        corpus, batch_size = corpus.shard(workers.index, workers.count), batch_size // workers.count
        if objective.duplicates is None:  # static masks depend only on the row
            mask_seed = process_seed(seed, workers.index)
    accumulation_steps = recipe.training.accumulation_steps
    numbered = objective.duplicates is not None
    bidirectional = isinstance(objective, PermutationObjective) and objective.bidirectional

    def batches(first_index: int) -> tf.data.Dataset:
        if objective.has_memory:
            options = {"bidirectional": bidirectional, "micro_batches": accumulation_steps}
            rows = stream_dataset(corpus, "train", batch_size, first_index, **options)
        elif corpus.config.batch_alpha is not None:
            rows = language_batches(
                corpus, batch_size, seed, first_index, accumulation_steps, numbered
            )
        else:
            rows = corpus.dataset("train", batch_size, seed, first_index, numbered=numbered)
        if recipe.isolate_documents:
            rows = with_documents(rows, corpus.vocabulary.special.end)
        dataset = objective.dataset(rows, corpus.vocabulary, mask_seed, first_index)
        return dataset.prefetch(tf.data.AUTOTUNE)

    return batches


def validation_batches(
    recipe: PretrainingRecipe, corpus: PretrainingCorpus, objective: PretrainingObjective
) -> tf.data.Dataset:
    """Makes the validation batches of a corpus, with the same masks in every validation."""
    if objective.has_memory:  # these objectives need texts of equal length
        rows = stream_dataset(corpus, "validation", recipe.batch_size, repeat=False)
    else:
        options = {"repeat": False, "drop_remainder": False}
        options["numbered"] = objective.duplicates is not None
        rows = corpus.dataset("validation", recipe.batch_size, None, **options)
    if recipe.isolate_documents:
        rows = with_documents(rows, corpus.vocabulary.special.end)
    batches = objective.dataset(rows, corpus.vocabulary, seed=0)
    return batches.take(recipe.validation_batches or -1)


def check_corpus(
    recipe: PretrainingRecipe, corpus: PretrainingCorpus, any_pairs: bool = False
) -> None:
    """Raises a `UserError` if the row length or the pairs of `corpus` differ from the recipe.

    Args:
        any_pairs: whether the corpus may have sentence pairs of another type than the recipe, as in
            evaluation. It must still have pairs if and only if the recipe has pairs.
    """
    wanted, prepared = recipe.corpus, corpus.config
    for name in ("sequence_length", "pairs"):
        value, prepared_value = getattr(wanted, name), getattr(prepared, name)
        is_fit = name == "pairs" and any_pairs and wanted.paired == prepared.paired
        if value != prepared_value and not is_fit:
            raise UserError(
                f"{corpus.folder} was prepared with {name}={prepared_value!r}, but the run has "
                f"{name}={value!r}: prepare another corpus, or set corpus.{name} for another run"
            )
