"""Pre-training: recipe (`PretrainingRecipe`), and the batches of a corpus."""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import keras
import tensorflow as tf
from annotated_types import Ge

from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.data.corpus.documents import corpus_mixture, open_source, source_readers
from macaron_tf.data.corpus.reading import (
    PretrainingCorpus,
    language_batches,
    stream_dataset,
    with_documents,
)
from macaron_tf.data.corpus.writing import prepare
from macaron_tf.data.rows import FORMAT
from macaron_tf.data.sampler import process_seed
from macaron_tf.data.sources.tfds import Tfds
from macaron_tf.distribution import Workers
from macaron_tf.errors import UserError
from macaron_tf.io.files import cache_directory
from macaron_tf.io.paths import absolute, as_path
from macaron_tf.io.plug_ins import is_import_path
from macaron_tf.layers.embeddings import cluster_bounds
from macaron_tf.models import EncoderConfig, EncoderDecoderConfig, Stack
from macaron_tf.objectives import (
    PRETRAINING,
    MaskedLanguageObjective,
    PermutationObjective,
    PretrainingObjective,
    SpanBoundaryObjective,
    SpanCorruptionObjective,
)
from macaron_tf.objectives.corruption import SENTINEL_ROWS
from macaron_tf.runs.recipe import MAY_CHANGE, Recipe, as_user_errors
from macaron_tf.runs.run import Inputs, Plan, Run
from macaron_tf.runs.trainer import evaluate_model, needs_static_shapes
from macaron_tf.settings import INT32, Count, ReadIf, Settings, Variants, hints_of
from macaron_tf.text import (
    BytePairVocabulary,
    MosesPairVocabulary,
    PieceVocabulary,
    SentencePieceVocabulary,
    WordPieceVocabulary,
    load_encoder_vocabulary,
)
from macaron_tf.text.base import RECORD, check_vocabulary
from macaron_tf.text.normalization import NormalizationConfig
from macaron_tf.training.config import LOWER_IS_BETTER

if TYPE_CHECKING:
    from macaron_tf.runs.starts import Start


@dataclasses.dataclass(frozen=True)
class VocabularyConfig(Settings):
    """Settings of a vocabulary that is trained for a pre-training run.

    Attributes:
        kind: `"wordpiece"` (BERT), `"sentencepiece"` (BPE, as in XLM), `"unigram"` (SentencePiece
            unigram model, as in ALBERT) or `"byte_bpe"` (RoBERTa).
        size: number of subword pieces, including special tokens.
        lower_case: whether text is lower-cased. WordPiece and unigram vocabularies then also
            strip accents, as in BERT and ALBERT.
        max_documents: maximum number of documents to read from the beginning of each source;
            `None` means all documents.
        max_characters: with `"wordpiece"`, maximum number of single characters in the vocabulary,
            which are the most frequent characters. A word with any other character becomes [UNK].
            `None` means 1,000 characters. For text such as Chinese, `None` means enough characters
            to cover 99.95% of the text, but at most three quarters of the vocabulary size.
    """

    section: ClassVar[str] = "data.vocabulary"

    kind: Literal["wordpiece", "sentencepiece", "unigram", "byte_bpe"] = "wordpiece"
    size: Annotated[int, Ge(8), INT32] = 8_000
    lower_case: bool = True
    max_documents: Count | None = None
    max_characters: Annotated[
        Count | None, ReadIf(lambda recipe: recipe.data.vocabulary.kind == "wordpiece")
    ] = None

    @classmethod
    def of(cls, vocabulary: PieceVocabulary) -> Self:
        """Returns the settings of a trained vocabulary.

        A vocabulary does not store `max_documents` and `max_characters`, which have default values.
        """
        settings = vocabulary.settings()
        lower_case = {**settings, **settings.get("normalization", {})}["lower_case"]
        kind = vocabulary.kind
        if isinstance(vocabulary, SentencePieceVocabulary) and vocabulary.model_type != "bpe":
            kind = vocabulary.model_type
        return cls(kind, vocabulary.pieces, lower_case)


@dataclasses.dataclass(frozen=True)
class PretrainingData(CorpusConfig):
    """Settings of a corpus, and of the batches that a pre-training run makes of its rows.

    With `pairs`, a row holds a pair of segments, and the model also learns sentence-pair
    classification (next-sentence or sentence-order prediction). A model with language embeddings
    has one embedding for each language of the sources.

    Attributes:
        vocabulary: settings of the vocabulary.
        batch_size: number of rows in a micro-batch. If the objective has a memory, each micro-batch
            of an update has its own texts, and these texts continue in the next update.
        isolate_documents: whether attention stays within a document if several documents share a
            row, as with `packing="full_text"` or `"full_sentences"`. Positions and recurrent states
            then restart with every document. [SEP] marks the end of a document.
        validation_batches: number of validation batches to evaluate; `None` means all batches.
    """

    vocabulary: VocabularyConfig = VocabularyConfig()
    batch_size: Count = 32
    isolate_documents: Annotated[bool, ReadIf(lambda recipe: recipe.data.crosses_documents)] = False
    validation_batches: Count | None = None

    @property
    def corpus(self) -> CorpusConfig:
        """The settings with which the corpus is prepared."""
        return CorpusConfig(**self.options(*hints_of(CorpusConfig)))


# Settings that a run takes from its prepared corpus.
CORPUS_SETTINGS = (*(f"data.{name}" for name in hints_of(CorpusConfig)), "data.vocabulary.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingRecipe(Recipe):
    """Settings of a pre-training run.

    Attributes:
        objective: pre-training objective with its settings. An encoder needs `"masked_language"`
            (BERT), `"span_boundary"` (SpanBERT), `"replaced_tokens"` (ELECTRA) or
            `"prefix_language"` (the prefix LM of T5's comparison). A causal model needs
            `"causal_language"` (GPT) or, with a memory of earlier rows, `"segment_language"`
            (Transformer-XL). Two-stream attention needs `"permutation_language"` (XLNet). An
            encoder-decoder needs `"span_corruption"` (T5) or `"denoising"` (BART). The form
            `package.module:Name` names a subclass of one of these classes. A new objective keeps
            the settings that it has in common with the recipe's objective.
        data: settings of the corpus, the vocabulary and the batches.
    """

    kind = "pretraining"
    training_flags = ("corpus", "vocabulary", "lower_case", "own_shards")
    trains_on_jax = True
    may_change = (*MAY_CHANGE, "data.validation_batches")
    from_data = CORPUS_SETTINGS
    evaluation_settings = ("objective.memory_length", "model.clamp_length")
    configs = (EncoderConfig, EncoderDecoderConfig)
    derived = ("objective.sentence_pair",)  # from data.pairs

    data: PretrainingData
    objective: Annotated[PretrainingObjective, Variants(PRETRAINING, PretrainingObjective)] = (
        MaskedLanguageObjective()
    )

    def check(self) -> None:
        objective, data = self.objective, self.data
        name = f"objective {objective.name!r}"
        metric, known = self.training.best_metric, {*LOWER_IS_BETTER, "accuracy"}
        if is_import_path(objective.name) and not (self.training.best_mode or metric in known):
            raise UserError(f"set training.best_mode=min or max for the metric {metric} of {name}")
        if data.paired and not isinstance(objective, MaskedLanguageObjective):
            raise UserError(f"{name} needs rows of running text: set data.pairs=none")
        if objective.causal and data.has_translations:
            raise UserError(f"{name} needs rows in one language: leave translation pairs out")
        joins = objective.has_memory or objective.encoder_decoder or data.has_translations
        if data.isolate_documents and joins:
            reason = "a memory, an encoder-decoder or translation pairs join documents"
            raise data.error(f"isolate_documents=True is not possible if {reason}: leave it out")
        if objective.has_memory and data.batch_alpha is not None:
            raise UserError(f"{name} continues texts from batch to batch: leave batch_alpha out")
        if objective.has_memory and data.packing != "full_text":
            raise UserError(f"{name} continues texts from row to row: set data.packing=full_text")
        if isinstance(objective, MaskedLanguageObjective):
            paired = dataclasses.replace(objective, sentence_pair=data.paired)
            object.__setattr__(self, "objective", paired)

    def model_config(self, vocab_size: int | None = None) -> EncoderConfig | EncoderDecoderConfig:
        config, objective = super().model_config(vocab_size), self.objective
        name, languages = f"objective {objective.name!r}", self.data.languages
        decodes = objective.encoder_decoder
        self.expect_model(config, EncoderDecoderConfig if decodes else EncoderConfig)
        # An encoder-decoder's row lacks [CLS] and [SEP], and has EOS.
        if config.longest is not None and config.longest < self.data.sequence_length - decodes:
            raise UserError(f"model.max_length is {config.longest}: lower data.sequence_length")
        if decodes and languages:
            raise UserError(f"{name} reads no languages: leave them out of data.sources")
        if decodes:
            return config
        if self.data.paired and config.num_segments < 2:
            raise UserError(f"data.pairs={self.data.pairs} needs model.num_segments=2")
        if config.causal != objective.causal:
            raise UserError(f"{name} does not support model.causal={config.causal}: set the other")
        if config.adaptive_cutoffs and not (objective.causal or objective.has_memory):
            raise UserError(f"{name} does not support an adaptive softmax: set adaptive_cutoffs=()")
        if isinstance(objective, PermutationObjective) and "swish_rnn" in config.blocks:
            why = "the recurrence would reveal each token to its own prediction"
            raise UserError(f"{name} does not support model.block=swish_rnn: {why}")
        if objective.has_memory and config.positions != "transformer_xl":
            raise UserError(f"{name} needs model.positions=transformer_xl")
        if config.num_languages and not languages:
            found = f"{self.model} has language embeddings, but no source has a language code"
            raise UserError(f"{found}: write (NAME, SPLIT, None, LANGUAGE) in data.sources")
        if config.adaptive_cutoffs and vocab_size:
            with as_user_errors("model.adaptive_cutoffs"):
                cluster_bounds(vocab_size, config.adaptive_cutoffs)
        if self.data.isolate_documents:
            with as_user_errors("data.isolate_documents=True"):
                Stack(config, config.num_layers, causal=config.causal).check_documents()
        if config.num_languages:
            config = dataclasses.replace(config, num_languages=len(languages))
        return config

    def network(self, config: EncoderConfig | EncoderDecoderConfig) -> keras.Model:
        """Creates the network with the heads that the objective needs, without building it."""
        return self.objective.network(config, self.training.dtype_policy)

    def sized_config(self, vocabulary: PieceVocabulary) -> EncoderConfig | EncoderDecoderConfig:
        has_sentinels = isinstance(self.objective, SpanCorruptionObjective)
        return self.model_config(vocabulary.size + SENTINEL_ROWS * has_sentinels)

    def make_objective(self, static_shapes: bool = False) -> PretrainingObjective:
        skip_padding = self.objective.skip_padding and not static_shapes
        return dataclasses.replace(self.objective, skip_padding=skip_padding)

    def card(self) -> dict:
        return {
            **super().card(),
            "objective": type(self.objective).name,  # a user's class has that of its base
            "trained_length": self.data.sequence_length,
            "languages": self.data.languages,
            "sentinels": self.objective.sentinels,
        }

    def read_start(self, inputs: Inputs, earlier: Run | None) -> "Start | None":
        if self.init:
            # Imported late, because only --init needs the readers of other libraries.
            from macaron_tf.runs.starts import read_start

            options = {"lower_case": inputs.lower_case, "trust_code": inputs.trust_code}
            return read_start(self.init, ("encoder", "pair"), **options)
        if inputs.lower_case is not None:
            raise UserError("--[no-]lower-case is for --init: set data.vocabulary.lower_case")
        return None

    def train_vocabulary(self, tfds: Tfds | None) -> PieceVocabulary:
        """Trains the vocabulary on at most ten million lines of text."""
        config, lines = self.data.vocabulary, vocabulary_lines(self, tfds)
        size, lower_case = config.size, config.lower_case
        if config.kind == "wordpiece":
            return WordPieceVocabulary.train(lines, size, lower_case, config.max_characters)
        if config.kind == "byte_bpe":
            return BytePairVocabulary.train(lines, size, lower_case=lower_case)
        options = {"model_type": "bpe", "normalization": NormalizationConfig(lower_case=lower_case)}
        if config.kind == "unigram":
            options |= {"model_type": "unigram", "fold_accents": lower_case}
        return SentencePieceVocabulary.train(lines, size, **options)

    def plan(self, run: Run, start: "Start | None", inputs: Inputs) -> Plan:
        earlier = run.earlier if inputs.resumes else None
        objective = self.make_objective(needs_static_shapes(inputs.devices))
        self.check_metric(objective.metric_names)
        if inputs.vocabulary and (inputs.corpus or start):
            owner = "the model of --init" if start else "the corpus"
            raise UserError(f"{owner} already has a vocabulary: leave --vocabulary out")
        if folder := inputs.corpus or (earlier and earlier.data_record().get("corpus")):
            corpus = PretrainingCorpus.open(folder)
        else:
            self.model_config()
            own = start and start.vocabulary
            corpus = prepare_corpus(self, None, inputs.vocabulary, inputs.tfds, own)
        if start:
            check_vocabulary(start.vocabulary.hash, corpus.vocabulary.hash, self.init)
        check_corpus(self, corpus)
        rows = corpus.rows("train")
        if rows < (batch_size := self.data.batch_size):
            found = f"a batch needs {batch_size} training rows, but {corpus.folder} has only {rows}"
            raise UserError(f"{found}: prepare a corpus with more text, or lower data.batch_size")
        # The settings of the corpus and its vocabulary become those of the run.
        vocabulary = VocabularyConfig.of(corpus.vocabulary)
        recipe = self.changed(data={**corpus.config.get_config(), "vocabulary": vocabulary})
        workers, own_shards = Workers(inputs.devices), inputs.own_shards
        validation_data = validation_batches(recipe, corpus, objective)

        example = "text_to_text:sst2" if objective.encoder_decoder else "finetune:sst2"
        commands = ["evaluate {run}"]
        commands += [f"train {example} {{run}}-sst2 --init {{run}} --data-dir DIR"]
        if objective.causal:
            commands.append('predict {run} "The story of"')
        elif isinstance(objective, MaskedLanguageObjective | SpanBoundaryObjective):
            commands.append('predict {run} "the [MASK] of the story"')
        return Plan(
            run=dataclasses.replace(run, recipe=recipe, vocabulary=corpus.vocabulary),
            batches=_batches(recipe, corpus, objective, workers, own_shards),
            validation=lambda network: lambda model, step: evaluate_model(model, validation_data),
            fingerprint=corpus.fingerprint,
            counts={"rows": rows, "corpus": str(absolute(corpus.folder))},
            per_worker=own_shards and workers.several,
            objective=objective,
            note=f"{f', from {self.init}' if start else ''}; {corpus.summary()}",
            next=commands,
            **({"initialize": start.copy_to} if start else {}),
        )

    def adapt(self, network: keras.Model) -> None:
        """Creates the memory of earlier rows, in which each replica has its own rows."""
        if not self.objective.has_memory:
            return
        mesh = keras.distribution.distribution()  # see `macaron_tf.distribution.distributed`
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        num_replicas = mesh.num_model_replicas if mesh else replicas
        if self.data.batch_size % num_replicas:
            raise UserError(f"data.batch_size must be a multiple of {num_replicas}, the devices")
        network.create_memory(self.data.batch_size // replicas, self.training.accumulation_steps)

    def memory(self, network: keras.Model, use: str = "training") -> Sequence[keras.Variable]:
        return network.memories[use].variables if self.objective.has_memory else ()


def vocabulary_lines(recipe: PretrainingRecipe, tfds: Tfds | None = None) -> Iterator[str]:
    """Yields the non-blank lines that the vocabulary of a recipe is trained on.

    The function takes one document from each source in turn. If `data.language_alpha` is set, the
    function instead samples documents from the monolingual sources (from all sources if there are
    none), with the sampling weights of the languages. Words in rare languages are then split into
    fewer subword pieces (Conneau and Lample 2019, section 3.1).
    """
    corpus, max_documents = recipe.data, recipe.data.vocabulary.max_documents
    if corpus.language_alpha is not None:
        monolingual = tuple(source for source in corpus.sources if not source.pair)
        corpus = dataclasses.replace(
            corpus, sources=monolingual or corpus.sources, packing=None, batch_alpha=None
        )
    sources = [open_source(source, tfds, max_documents) for source in corpus.sources]
    if corpus.language_alpha is None:
        # The trainer reads at most ten million lines. Reading in turn covers all sources.
        texts = itertools.chain.from_iterable(itertools.zip_longest(*sources, fillvalue=""))
    else:
        readers = source_readers(corpus, tfds, max_documents)
        texts = (document.text for document in corpus_mixture(corpus, readers))
    for text in texts:
        yield from filter(str.strip, text.splitlines() if isinstance(text, str) else text)


def prepare_corpus(
    recipe: PretrainingRecipe,
    out: str | None,
    vocabulary_dir: str | None,
    tfds: Tfds | None = None,
    vocabulary: PieceVocabulary | None = None,
    **options,
) -> PretrainingCorpus:
    """Prepares the corpus of a recipe, or opens the corpus if it is already prepared.

    Without `vocabulary_dir` and `vocabulary`, the function uses the vocabulary in `out`. If `out`
    has no vocabulary, the function trains a vocabulary.

    Args:
        out: folder of the corpus; `None` means a folder in `cache_directory()`, whose name is a
            hash of the settings.
        vocabulary_dir: folder of an existing vocabulary, which takes precedence over `vocabulary`.
        options: further arguments of `macaron_tf.data.corpus.writing.prepare`.
    """
    if out is None:
        settings = [FORMAT, *map(repr, (recipe.data.corpus, recipe.data.vocabulary))]
        settings += [vocabulary.hash if vocabulary else vocabulary_dir, tfds and tfds.data_dir]
        digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        out = cache_directory() / "corpora" / digest
    if vocabulary_dir:
        vocabulary = load_encoder_vocabulary(vocabulary_dir)
    elif vocabulary is None:
        vocabulary = _corpus_vocabulary(recipe, out, tfds)
    if isinstance(vocabulary, MosesPairVocabulary):
        raise UserError(f"a {vocabulary.kind} vocabulary needs the language of each line")
    return prepare(recipe.data.corpus, vocabulary, out, tfds=tfds, **options)


def _corpus_vocabulary(
    recipe: PretrainingRecipe, out: str | os.PathLike, tfds: Tfds | None
) -> PieceVocabulary:
    """Loads the vocabulary in the corpus folder `out`, or trains a vocabulary if there is none."""
    if not (as_path(out) / RECORD).exists():
        print(f"training a vocabulary of {recipe.data.vocabulary.size:,} pieces", flush=True)
        return recipe.train_vocabulary(tfds)
    vocabulary = load_encoder_vocabulary(out)
    found = recipe.data.vocabulary.of(vocabulary)
    for name in ("kind", "size", "lower_case"):
        saved, wanted = (getattr(config, name) for config in (found, recipe.data.vocabulary))
        if saved != wanted:
            found = f"{out} contains a vocabulary with {name}={saved!r}, but the recipe needs"
            raise UserError(f"{found} {name}={wanted!r}: choose another folder, or set it")
    return vocabulary


def _batches(
    recipe: PretrainingRecipe,
    corpus: PretrainingCorpus,
    objective: PretrainingObjective,
    workers: Workers,
    own_shards: bool,
) -> Callable[[int], tf.data.Dataset]:
    """Returns a function from the first micro-batch's index to the endless training batches."""
    batch_size, seed = recipe.data.batch_size, recipe.training.seed
    mask_seed = seed
    if objective.has_memory and own_shards:
        raise UserError(f"{objective.name!r} reads texts in order: leave --own-shards out")
    if own_shards and workers.several:
        if keras.backend.backend() == "jax":
            raise UserError("--own-shards works only with --engine tensorflow: leave it out")
        if corpus.config.batch_alpha is not None:
            raise UserError("batch_alpha needs the files of all languages: leave --own-shards out")
        if batch_size % workers.count:
            raise UserError(f"--own-shards needs a multiple of {workers.count} as data.batch_size")
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
        if recipe.data.isolate_documents:
            rows = with_documents(rows, corpus.vocabulary.special.end)
        dataset = objective.dataset(rows, corpus.vocabulary, mask_seed, first_index)
        return dataset.prefetch(tf.data.AUTOTUNE)

    return batches


def validation_batches(
    recipe: PretrainingRecipe, corpus: PretrainingCorpus, objective: PretrainingObjective
) -> tf.data.Dataset:
    """Makes the validation batches of a corpus, with the same masks in every validation."""
    if objective.has_memory:  # these objectives need texts of equal length
        rows = stream_dataset(corpus, "validation", recipe.data.batch_size, repeat=False)
    else:
        options = {"repeat": False, "drop_remainder": False}
        options["numbered"] = objective.duplicates is not None
        rows = corpus.dataset("validation", recipe.data.batch_size, None, **options)
    if recipe.data.isolate_documents:
        rows = with_documents(rows, corpus.vocabulary.special.end)
    batches = objective.dataset(rows, corpus.vocabulary, seed=0)
    return batches.take(recipe.data.validation_batches or -1)


def check_corpus(
    recipe: PretrainingRecipe, corpus: PretrainingCorpus, any_pairs: bool = False
) -> None:
    """Raises a `UserError` if the row length or the pairs of `corpus` differ from the recipe.

    Args:
        any_pairs: whether the corpus may have sentence pairs of another type than the recipe, as in
            evaluation. It must still have pairs if and only if the recipe has pairs.
    """
    wanted, prepared = recipe.data, corpus.config
    for name in ("sequence_length", "pairs"):
        value, prepared_value = getattr(wanted, name), getattr(prepared, name)
        is_fit = name == "pairs" and any_pairs and wanted.paired == prepared.paired
        if value != prepared_value and not is_fit:
            found = f"{corpus.folder} was prepared with {name}={prepared_value!r}, not {value!r}"
            raise UserError(f"{found}: prepare another corpus, or set data.{name}={prepared_value}")
