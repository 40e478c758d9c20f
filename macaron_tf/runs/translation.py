"""Run folder of translation models (`TranslationRun`)."""

import dataclasses
import os
from collections.abc import Sequence

import keras
import tensorflow as tf

from macaron_tf.data.sources.readers import count_texts, read_pairs
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.data.translation import TranslationData
from macaron_tf.decoding import BeamSearchConfig, LineTranslator, SamplingConfig
from macaron_tf.distribution import is_tpu
from macaron_tf.errors import UserError, warn
from macaron_tf.evaluation.translation import evaluate_translations
from macaron_tf.models import EncoderDecoder
from macaron_tf.models.encoder_decoder import first_stage_variables
from macaron_tf.objectives import TranslationObjective
from macaron_tf.runs.run import Inputs, Plan, Run
from macaron_tf.runs.trainer import needs_static_shapes, plan_of_pairs
from macaron_tf.runs.translation_recipe import DataConfig, TranslationRecipe
from macaron_tf.runs.translation_start import TranslationStart, read_init
from macaron_tf.tasks.translation import Translation
from macaron_tf.text import (
    PairVocabulary,
    PieceVocabulary,
    SentencePieceVocabulary,
    check_vocabulary,
)
from macaron_tf.training import TrainingResult
from macaron_tf.training.updates import FirstStage


@dataclasses.dataclass(frozen=True)
class TranslationRun(Run):
    recipe_class = TranslationRecipe
    training_flags = ("vocabulary", "processes")
    trains_on_jax = True

    @classmethod
    def read_start(
        cls, recipe: TranslationRecipe, inputs: Inputs, earlier: Run | None
    ) -> TranslationStart:
        return read_init(recipe.init, recipe.init_parts, recipe.init_decoder, inputs.trust_code)

    @classmethod
    def started(cls, recipe: TranslationRecipe, start: TranslationStart) -> TranslationRecipe:
        return start.apply(recipe)

    def make_network(self) -> EncoderDecoder:
        vocab_sizes = [self.vocabulary.size]
        if isinstance(self.vocabulary, PairVocabulary):
            vocab_sizes = [self.vocabulary.target.size, self.vocabulary.source.size]
        return self.recipe.network(self.recipe.model_config(*vocab_sizes))

    def first_stage(self, network: EncoderDecoder) -> FirstStage | None:
        if not self.recipe.first_stage_steps:
            return None
        return FirstStage(self.recipe.first_stage_steps, first_stage_variables(network))

    def translator(
        self,
        checkpoint: os.PathLike | str | None = None,
        decoding: BeamSearchConfig | SamplingConfig | None = None,
        seed: int = 1,
        backward: bool = False,
    ) -> LineTranslator:
        """Builds a `LineTranslator` with the weights of a checkpoint; see `load_network`.

        Args:
            decoding: settings of beam search or sampling; `None` means the settings of the recipe.
            backward: whether to translate from the target language to the source language.
        """
        task = Translation(self.load_network(checkpoint), self.vocabulary, self.recipe.decoding)
        return task.lines(decoding, seed, backward)

    def line_translator(
        self, network: EncoderDecoder, decoding: BeamSearchConfig
    ) -> LineTranslator:
        """Builds a `LineTranslator`, which translates lines of text with `network`."""
        return Translation(network, self.vocabulary, decoding).lines()

    @classmethod
    def train_vocabulary(cls, recipe: TranslationRecipe, tfds: Tfds | None) -> PieceVocabulary:
        return TranslationStart().vocabulary(recipe, tfds=tfds)

    def plan(self, start: TranslationStart, inputs: Inputs) -> Plan:
        recipe, config, tfds = self.recipe, self.recipe.data, inputs.tfds
        start.check(recipe)  # before the data are read, which may take minutes
        recipe.check_metric((*TranslationObjective.metric_names, "bleu", "sacrebleu", "chrf"))
        run = self.continued()
        train_split, validation_split = (
            config.parts.get(name, name) for name in (config.train_split, config.validation_split)
        )
        held_out = read_pairs(config.source, validation_split, *config.languages, tfds)
        validation_pairs = list(held_out[: config.validation_lines])
        references = [reference for _, reference in validation_pairs]
        metric = recipe.metric.for_references(references)
        vocabulary = run.vocabulary
        if inputs.vocabulary or vocabulary is None:
            vocabulary = start.vocabulary(recipe, inputs.vocabulary, tfds)
        if run.earlier:
            check_vocabulary(run.earlier.vocabulary.hash, vocabulary.hash, run.path)
        for name in ("languages", "normalization"):
            trained, wanted = getattr(vocabulary, name), getattr(config, name)
            if trained != wanted:
                raise UserError(
                    f"the vocabulary was trained for {name}={trained!r}, but must be for "
                    f"{wanted!r}: train another"
                )
        source = vocabulary.source if isinstance(vocabulary, PairVocabulary) else vocabulary
        rule = isinstance(source, SentencePieceVocabulary) and source.normalization_rule
        wanted_rule = config.normalization_rule
        if wanted_rule not in ("nmt_nfkc", rule):  # the default accepts any vocabulary
            raise UserError(
                f"data.normalization_rule is {wanted_rule!r}, but the vocabulary was not trained "
                "with this rule: leave it out, or train a vocabulary by `macaron vocabulary`"
            )
        strategy = inputs.devices
        if recipe.unsupervised and keras.backend.backend() == "jax":
            raise UserError(
                "unsupervised=True works with the TensorFlow engine only: leave out --engine jax"
            )
        data = TranslationData.build(
            config.source,
            train_split,
            vocabulary,
            target_split=config.target_split,
            cleaning=config.cleaning,
            batching=config.batching,
            bpe_dropout=config.bpe_dropout,
            tfds=tfds,
            processes=inputs.processes,
        )
        print(f"training text: {data.summary()}", flush=True)
        if config.target_split:
            _warn_unequal_lengths(config, tfds)
        tokens = max(data.tokens.source.size, data.tokens.target.size)
        if tokens < config.batching.max_tokens:
            raise UserError(f"the text has only {tokens} tokens: lower data.batching.max_tokens")
        if is_tpu(strategy) and len(data.shapes) > 1:
            raise UserError(
                f"a TPU needs batches of one shape, not {len(data.shapes)}: set "
                "data.batching.shapes=1"
            )
        objective = recipe.make_objective(needs_static_shapes(strategy))
        seed = recipe.training.seed

        def batches(step: int) -> tf.data.Dataset:
            rows = data.dataset(seed, step)
            if recipe.unsupervised:
                rows = objective.dataset(rows, vocabulary.target, seed, step)
            return rows

        cleaning = dataclasses.replace(config.cleaning, max_ratio=None, deduplicate=False)
        validation_data = TranslationData.from_pairs(
            held_out, vocabulary, cleaning=cleaning, batching=config.batching
        )

        def score(hypotheses: Sequence[str]) -> dict[str, float]:
            """Computes tokenized BLEU, as in papers, and the BLEU and chrF of sacreBLEU."""
            scores = evaluate_translations(hypotheses, references, metric)
            return dict(bleu=scores.tokenized_bleu, sacrebleu=scores.bleu, chrf=scores.chrf)

        def ended(result: TrainingResult | None) -> tuple[str, list[str]]:
            commands = ["average {run}"] if len(run.regular_steps()) > 1 else []
            best = "best validation {metric} {score:.2f} at step {step:,}"
            return best, [*commands, "evaluate {run}{data}", "predict {run} --input FILE"]

        return plan_of_pairs(
            dataclasses.replace(run, vocabulary=vocabulary),
            data,
            validation_data,
            validation_pairs,
            score,
            "source:      {}\nreference:   {}\ntranslation: {}",
            initialize=lambda network: start.copy_to(network, recipe),
            note=f", from {start.init.given}" if start.init else "",
            batches=batches,
            objective=objective,
            ended=ended,
        )


def _warn_unequal_lengths(config: DataConfig, tfds: Tfds | None) -> None:
    """Warns on stderr if one text is longer, because training never reads its surplus lines."""
    splits = config.train_split, config.target_split
    counts = [count_texts(config.source, name, config.languages, tfds) for name in splits]
    if all(counts) and counts[0] != counts[1]:
        (fewer, shorter), (more, longer) = sorted(zip(counts, splits, strict=True))
        warn(
            f"{more - fewer:,} line(s) of {longer!r} are not read, because {shorter!r} has only "
            f"{fewer:,} lines: give splits with equal numbers of lines"
        )
