"""Translation models: recipe (`TranslationRecipe`), and the translator of a run."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import keras
from annotated_types import Ge, Gt, Lt

from macaron_tf.data.sources.names import WHOLE_SPLITS, HeldOut, Source
from macaron_tf.data.sources.readers import read_pairs
from macaron_tf.data.translation import BatchingConfig, CleaningConfig, TranslationData
from macaron_tf.decoding import (
    BackTranslationObjective,
    BeamSearchConfig,
)
from macaron_tf.distribution import is_tpu
from macaron_tf.errors import UserError
from macaron_tf.evaluation.translation import TranslationMetric, evaluate_translations
from macaron_tf.models import EncoderDecoder, EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import first_stage_variables
from macaron_tf.objectives import DenoisingConfig, TranslationObjective
from macaron_tf.runs.recipe import MAY_CHANGE, Recipe
from macaron_tf.runs.run import Inputs, Plan, Run
from macaron_tf.runs.starts import TranslationStart, read_init
from macaron_tf.runs.trainer import needs_static_shapes, plan_of_pairs
from macaron_tf.settings import INT32, Count, Dropout, Natural, ReadIf, Settings
from macaron_tf.tasks.translation import TranslationSettings
from macaron_tf.text import (
    PairVocabulary,
    PieceVocabulary,
    SentencePieceVocabulary,
)
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.text.sentencepiece import NormalizationRule
from macaron_tf.training.updates import FirstStage


@dataclasses.dataclass(frozen=True)
class DataConfig(Settings):
    """Settings of the training text of a translation model.

    Attributes:
        source: source of the text pairs, such as `tfds:multi30k/de-en`.
            `macaron_tf.data.sources.names.PAIR_FORMS` lists the forms.
        source_language, target_language: language code, such as "en".
        train_split, validation_split, test_split: name of the split.
        target_split: with `unsupervised`, name of the split with the target text, whose lines need
            not be translations of the source text; `None` means `train_split`.
        vocabulary_size: number of subword pieces in the joint vocabulary. If `--init` names an
            encoder-decoder, number of subword pieces in the source vocabulary.
        normalization: text normalization before subword segmentation.
        normalization_rule: SentencePiece normalization rule, applied after `normalization` and
            stored in a vocabulary that is trained for the run. `nmt_nfkc` replaces compatibility
            characters (`m²` with `m2`, full-width letters with ASCII) and replaces a zero-width
            non-joiner with a space. `nfkc` keeps the non-joiner. `identity` changes nothing. Rules
            that end in `_cf` also fold case.
        cleaning: filters for the training pairs.
        batching: batch sizes and shapes.
        validation_lines: number of lines from the validation split that each validation translates
            to compute BLEU; `None` means all lines.
        held_out: fraction of the pairs that forms the validation split if the source has no splits
            of its own, such as a file name without {split}. At most 2,000 distinct pairs are held
            out.
        seed: seed for choosing the held-out pairs.
    """

    section: ClassVar[str] = "data"

    source: str
    source_language: str
    target_language: str
    train_split: str = "train"
    target_split: str | None = None
    validation_split: str = "validation"
    test_split: str = "test"
    vocabulary_size: Annotated[int, Ge(8), INT32] = 10_000
    normalization: NormalizationConfig = NormalizationConfig()
    normalization_rule: NormalizationRule = "nmt_nfkc"
    cleaning: CleaningConfig = CleaningConfig()
    batching: BatchingConfig = BatchingConfig()
    validation_lines: Count | None = None
    held_out: Annotated[float, Gt(0), Lt(1)] = 0.1
    seed: Natural = 1

    @property
    def parts(self) -> dict[str, HeldOut]:
        """Training and validation parts of a source without splits, as a dict from split to part.

        The dict is empty if the source has its own splits, or unless `train_split` is "train" or
        "all" and `validation_split` is neither.
        """
        rest = {name: name in WHOLE_SPLITS for name in (self.train_split, self.validation_split)}
        if Source.of(self.source).has_splits or [*rest.values()] != [True, False]:
            return {}
        return {name: HeldOut(self.held_out, self.seed, rest=rest[name]) for name in rest}

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of the source and the target language."""
        return self.source_language, self.target_language


@dataclasses.dataclass(frozen=True)
class TranslationTask(Settings):
    """Settings of a translator, of its training and of its scores.

    Attributes:
        decoding: settings of beam search.
        metric: settings of BLEU.
        label_smoothing: label smoothing of the training loss.
        unsupervised: whether to learn the two translation directions without text pairs, by
            denoising and back-translation (see `BackTranslationObjective`). In this case, `--init`
            must be an encoder or a language model that was pre-trained on the source and the target
            language.
        denoising: settings of the noise that `unsupervised` adds to the text.
        sentinel_rows: number of additional embedding rows for the sentinel tokens of T5.
        first_stage_steps: number of updates in the first stage of BART fine-tuning. The first stage
            trains only the new source encoder, the position embeddings, and the query, key and
            value projections of the first encoder layer. Later updates train all weights.
        average_last: number of checkpoints that `macaron average` averages by default.
    """

    section: ClassVar[str] = "task"

    decoding: BeamSearchConfig
    metric: TranslationMetric
    label_smoothing: Dropout = 0.1
    unsupervised: bool = False
    denoising: Annotated[DenoisingConfig, ReadIf(lambda recipe: recipe.task.unsupervised)] = (
        DenoisingConfig()
    )
    sentinel_rows: Natural = 0
    first_stage_steps: Natural = 0
    average_last: Count = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationRecipe(Recipe):
    """Settings of a translation run.

    An encoder or a language model as `init` initializes the encoder and the decoder. A pre-training
    run of BART or T5 becomes the translation model, with a new encoder of the source text before
    it.

    Attributes:
        init_decoder: second pre-trained model, of equal sizes and vocabulary, for the decoder;
            `None` means the model of `init`.
        init_parts: parts to initialize besides the embeddings, among `"encoder"` and `"decoder"`;
            empty means both, and `"embeddings"` alone means no other.
    """

    kind = "translation"
    training_flags = ("vocabulary", "processes")
    trains_on_jax = True
    configs = (EncoderDecoderConfig,)
    lengths = ("data.cleaning.max_tokens", "task.decoding.max_length")
    implied: ClassVar = {"data.target_language": ("task.metric.language", None)}
    start_settings = ("init", "init_decoder", "init_parts")
    evaluation_settings = ("task.decoding.", "task.metric.")
    may_change = (
        *MAY_CHANGE,
        "data.test_split",
        "data.validation_split",
        "data.validation_lines",
        "task.average_last",
        "task.decoding.",
        "task.metric.",
    )

    task: TranslationTask
    data: DataConfig
    init_decoder: str | None = None
    init_parts: tuple[Literal["embeddings", "encoder", "decoder"], ...] = ()

    def model_config(
        self, vocab_size: int | None = None, source_vocab_size: int | None = None
    ) -> EncoderDecoderConfig:
        """Returns the model configuration, by default with a joint vocabulary.

        If `source_vocab_size` is set, `vocab_size` is the size of the target vocabulary.
        """
        if vocab_size is not None:
            vocab_size += self.task.sentinel_rows
        config = super().model_config(vocab_size)
        if self.task.first_stage_steps and not config.num_source_layers:
            raise UserError("task.first_stage_steps needs --init with a BART or T5")
        return dataclasses.replace(
            config, source_vocab_size=source_vocab_size, two_way=self.task.unsupervised
        )

    def check(self) -> None:
        if self.data.target_split and not self.task.unsupervised:
            raise UserError("data.target_split needs task.unsupervised=True")

    def task_settings(self) -> TranslationSettings:
        return TranslationSettings(self.task.decoding)

    def make_objective(
        self, static_shapes: bool = False
    ) -> TranslationObjective | BackTranslationObjective:
        task = self.task
        options = {"label_smoothing": task.label_smoothing, "skip_padding": not static_shapes}
        if not task.unsupervised:
            return TranslationObjective(**options)
        options |= task.denoising.get_config()
        return BackTranslationObjective(length=self.data.cleaning.max_tokens, **options)

    def read_start(self, inputs: Inputs, earlier: Run | None) -> TranslationStart:
        return read_init(self.init, self.init_parts, self.init_decoder, inputs.trust_code)

    def started(self, start: TranslationStart) -> "TranslationRecipe":
        return start.apply(self)

    def sized_config(self, vocabulary: PieceVocabulary | PairVocabulary) -> EncoderDecoderConfig:
        if not isinstance(vocabulary, PairVocabulary):
            return super().sized_config(vocabulary)
        return self.model_config(vocabulary.target.size, vocabulary.source.size)

    def first_stage(self, network: EncoderDecoder) -> FirstStage | None:
        """Returns the first stage of training in two stages, or `None` if there is one stage."""
        steps = self.task.first_stage_steps
        return FirstStage(steps, first_stage_variables(network)) if steps else None

    def plan(self, run: Run, start: TranslationStart, inputs: Inputs) -> Plan:
        config, tfds = self.data, inputs.tfds
        start.check(self)  # before the data are read, which may take minutes
        self.check_metric((*TranslationObjective.metric_names, "bleu", "sacrebleu", "chrf"))
        train_split, validation_split = (
            config.parts.get(name, name) for name in (config.train_split, config.validation_split)
        )
        held_out = read_pairs(config.source, validation_split, *config.languages, tfds)
        validation_pairs = list(held_out[: config.validation_lines])
        references = [reference for _, reference in validation_pairs]
        metric = self.task.metric.for_references(references)
        vocabulary = run.vocabulary
        if inputs.vocabulary or vocabulary is None:
            vocabulary = start.vocabulary(self, inputs.vocabulary, tfds)
        for name in ("languages", "normalization"):
            trained, wanted = getattr(vocabulary, name), getattr(config, name)
            if trained != wanted:
                raise UserError(f"the vocabulary was trained for {name}={trained}, not {wanted}")
        source = vocabulary.source if isinstance(vocabulary, PairVocabulary) else vocabulary
        found = isinstance(source, SentencePieceVocabulary) and source.normalization_rule
        rule = config.normalization_rule
        if rule not in ("nmt_nfkc", found):  # the default accepts any vocabulary
            found = f"data.normalization_rule is {rule!r}"
            raise UserError(f"{found}, but the vocabulary was not trained with it: leave it out")
        strategy = inputs.devices
        if self.task.unsupervised and keras.backend.backend() == "jax":
            raise UserError("task.unsupervised=True works with the TensorFlow engine only")
        data = TranslationData.build(
            config.source,
            train_split,
            vocabulary,
            tfds=tfds,
            processes=inputs.processes,
            **config.options("target_split", "cleaning", "batching"),
        )
        print(f"training text: {data.summary()}", flush=True)
        tokens = max(data.tokens.source.size, data.tokens.target.size)
        if tokens < config.batching.max_tokens:
            raise UserError(f"the text has only {tokens} tokens: lower data.batching.max_tokens")
        if is_tpu(strategy) and len(data.shapes) > 1:
            raise UserError("a TPU needs batches of one shape: set data.batching.shapes=1")
        objective, seed = self.make_objective(needs_static_shapes(strategy)), self.training.seed
        options: dict[str, Any] = {}
        if self.task.unsupervised:
            options["batches"] = lambda step: objective.dataset(
                data.dataset(seed, step), vocabulary.target, seed, step
            )
        cleaning = dataclasses.replace(config.cleaning, max_ratio=None, deduplicate=False)
        validation_data = TranslationData.from_pairs(
            held_out, vocabulary, cleaning=cleaning, batching=config.batching
        )

        def score(hypotheses: Sequence[str]) -> dict[str, float]:
            """Computes tokenized BLEU, as in papers, and the BLEU and chrF of sacreBLEU."""
            scores = evaluate_translations(hypotheses, references, metric)
            names = {"bleu": "tokenized_bleu", "sacrebleu": "bleu", "chrf": "chrf"}
            return {name: scores[key] for name, key in names.items()}

        return plan_of_pairs(
            dataclasses.replace(run, vocabulary=vocabulary),
            data,
            validation_data,
            validation_pairs,
            score,
            "source:      {}\nreference:   {}\ntranslation: {}",
            initialize=lambda network: start.copy_to(network, self),
            note=f", from {start.init.given}" if start.init else "",
            objective=objective,
            first_stage=self.first_stage,
            best="best validation {metric} {score:.2f} at step {step:,}",
            next=("average {run}", "evaluate {run}{data}", "predict {run} --input FILE"),
            **options,
        )
