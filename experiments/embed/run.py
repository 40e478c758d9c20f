"""Sentence encoders: a run of Sentence-BERT, or any other encoder whose vectors are pooled."""

import argparse
import dataclasses
import hashlib
import json
import sys
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge

from experiments.epochs import EpochRecipe, RowOutputs, fine_tuning, read_init
from experiments.run import Run
from macaron_tf.data.batches import Buckets, choose_lengths
from macaron_tf.data.tasks.definitions import TASKS, Task, get_task
from macaron_tf.data.tasks.encoding import EncodedSentences, encode_sentences
from macaron_tf.errors import UserError, check_whole
from macaron_tf.io.progress import track
from macaron_tf.models.tasks import SiameseEncoder, parse_concatenation
from macaron_tf.objectives import (
    CosineObjective,
    Objective,
    PairClassificationObjective,
    TripletObjective,
)
from macaron_tf.pretrained import locate
from macaron_tf.settings import INT32, Positive
from macaron_tf.starts import Start
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows

_LONGEST = 128  # of a model that does not say what it was trained on
# Lengths of batches: of STS-B's positions 9% are padding; with multiples of 8 it would be 24%.
_SHAPES = 16
_LONG = 2_000  # sentences from which on progress is shown

# Which text is near the anchor; not a task of fine-tuning.
TRIPLETS = Task(
    "triplets",
    ("anchor",),
    ("positive", "negative"),
    labels=("positive", "negative"),
    kind="choice",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingRecipe(EpochRecipe):
    """Every setting of a run of Sentence-BERT; sentences longer than `max_length` are cut.

    Attributes:
        task: a task of two texts, see `macaron_tf.data.tasks.definitions`, or "triplets".
        objective: over a pair's classes, against its score, or of triplets.
        pooling: makes one vector of the tokens' vectors.
        concatenation: what the softmax sees of two vectors, see `SiameseEncoder`.
        normalize: whether the vectors are of length 1 before the objective sees them.
        margin: of the triplet objective.
    """

    kind = "embedding"
    command = "python -m experiments.embed"
    by_argument: ClassVar = {**EpochRecipe.by_argument, "objective": "--objective"}

    objective: Literal["softmax", "cosine", "triplet"]
    pooling: Literal["mean", "max", "cls"] = "mean"
    concatenation: str = "u,v,|u-v|"
    normalize: bool = False
    margin: Positive = 1.0
    max_length: Annotated[int, Ge(3), INT32] = 128  # [CLS], a token, [SEP]

    def check(self) -> None:
        fitting = default_objective(self.described)
        if self.objective != fitting:
            raise UserError(
                f"objective is {self.objective!r}, but {self.task} is learnt by {fitting!r}: "
                "softmax wants classes of pairs, cosine scores of pairs, triplet triplets"
            )
        try:
            parse_concatenation(self.concatenation)
        except ValueError as error:
            raise UserError(str(error)) from error

    def unread(self) -> dict[str, str]:
        readers = {"concatenation": "softmax", "margin": "triplet"}
        others = {n: f"objective {kind!r}" for n, kind in readers.items() if self.objective != kind}
        return super().unread() | others

    @property
    def described(self) -> Task:
        """The task that `task` names."""
        return pair_task(self.task)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of a validation, but for its loss."""
        if self.objective == "softmax":
            return ("score", *self.described.metrics)
        return ("spearman", "pearson") if self.objective == "cosine" else ("accuracy",)

    @property
    def num_classes(self) -> int:
        """Classes of the softmax; 0 for the other objectives."""
        return self.described.num_classes if self.objective == "softmax" else 0

    def usage(self) -> dict:
        return {
            **super().usage(),
            "max_length": self.max_length,
            "pooling": self.pooling,
            "normalize": self.normalize,
        }

    def make_objective(self, static_shapes: bool = False) -> Objective:
        if self.objective == "softmax":
            return PairClassificationObjective(self.num_classes)
        if self.objective == "cosine":
            return CosineObjective(*self.described.score_range)
        return TripletObjective(self.margin)


def pair_task(name: str) -> Task:
    """`TRIPLETS`, or a task whose examples are two texts and a class or score of the two."""
    if name == TRIPLETS.name:
        return TRIPLETS
    if not _is_of_pairs(get_task(name)):
        known = ", ".join(task.name for task in TASKS.values() if _is_of_pairs(task))
        raise UserError(
            f"{name} is not about pairs of texts: give {TRIPLETS.name}, or one of {known}"
        )
    return get_task(name)


def _is_of_pairs(task: Task) -> bool:
    # The answers of MultiRC are judged together, by question.
    return bool(task.second) and task.kind == "classification" and not task.grouped


def default_objective(task: Task) -> str:
    """The objective that a task's labels allow."""
    if task is TRIPLETS:
        return "triplet"
    return "cosine" if task.regression else "softmax"


def paper_recipe(name: str, objective: str | None = None) -> EmbeddingRecipe:
    """The settings of Reimers and Gurevych 2019, sections 3.1 and 4.4.

    Adam at 2e-5, batches of 16, 10% linear warm-up, one epoch over classes or triplets, mean
    pooling. Chosen here: four epochs over STS-B, linearly to 0 after the warm-up; weight decay and
    epsilon are BERT's fine-tuning's.
    """
    task = pair_task(name)
    fitting = default_objective(task)
    best = {"softmax": "score", "cosine": "spearman", "triplet": "accuracy"}
    return EmbeddingRecipe(
        model="bert_base",
        task=name,
        source=task.source,
        objective=objective or fitting,
        batch_size=16,
        epochs=4.0 if fitting == "cosine" else 1.0,
        training=fine_tuning(2e-5, best[fitting]),
    )


@dataclasses.dataclass(frozen=True)
class EmbeddingRun(Run):
    """A finished or running training of a sentence encoder."""

    recipe_class = EmbeddingRecipe

    def make_network(self) -> SiameseEncoder:
        recipe = self.recipe
        return SiameseEncoder(
            recipe.model_config(self.vocabulary.size),
            recipe.pooling,
            recipe.normalize,
            recipe.num_classes,
            recipe.concatenation,
            dtype=recipe.training.dtype_policy,
        )


@dataclasses.dataclass(eq=False)
class SentenceEncoder:
    """Vectors of sentences, in batches of sentences of about one length; see `RowOutputs`.

    Attributes:
        max_length: longest row, special ids included; longer sentences are cut.
        max_tokens: padded tokens of a batch.
    """

    network: SiameseEncoder
    vocabulary: PieceVocabulary
    max_length: int
    max_tokens: int = 8192

    def __post_init__(self):
        self.max_tokens = max(self.max_tokens, self.max_length)
        self.width = self.network.config.hidden_dim
        self._outputs = RowOutputs(self.network, ("token_ids",))

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors `(N, D)` float32 of N sentences, in their order.

        An empty one is encoded too, as its two special ids. Long ones are cut, with one warning
        for all on stderr.
        """
        check_whole(texts)
        rows, cut = encode_sentences(self.vocabulary, texts, self.max_length)
        warn_cut(cut, len(texts), self.max_length)
        return self.of_rows(rows)

    def of_rows(self, rows: TokenRows) -> np.ndarray:
        """Vectors `(N, D)` of N rows with their special ids, none longer than `max_length`."""
        found = np.empty((len(rows.lengths), self.width), np.float32)
        if not len(found):
            return found
        lengths = choose_lengths(rows.lengths, _SHAPES, multiple=1)
        plan = Buckets(lengths, self.max_tokens).plan(rows.lengths, None)
        # The last batch alone has rows of padding: of one short query they would be 500.
        kept = ((batch.rows[batch.rows >= 0], batch.length) for batch in plan)
        batches = ((own, (rows.padded(own, length),)) for own, length in kept)
        if len(found) >= _LONG:
            sized = ((len(batch[0]), batch) for batch in batches)
            batches = track(sized, len(found), "encoding", "sentences")
        return self._outputs.fill(found, batches)

    def of_sets(self, data: EncodedSentences) -> np.ndarray:
        """Vectors `(N, S, D)` of N tokenized examples of S sentences."""
        # (N S, D) -> (N, S, D)
        return self.of_rows(data.rows).reshape(-1, data.count, self.width)

    def identity(self) -> str:
        """SHA-256 (hex) over the settings, vocabulary and weights that a vector depends on."""
        settings = {**self.network.get_config(), "max_length": self.max_length}
        digest = hashlib.sha256(f"{self.vocabulary.hash}\n".encode())
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
        for weight in self.network.get_weights():
            digest.update(np.ascontiguousarray(weight))
        return digest.hexdigest()


def warn_cut(cut: int, total: int, max_length: int) -> None:
    """Warns on stderr that `cut` of `total` sentences were too long."""
    if cut:
        print(
            f"warning: {cut:,} of {total:,} sentences have more than {max_length - 2} tokens: "
            "what comes after is not read",
            file=sys.stderr,
        )


def read_start(
    given: str,
    model: str | None = None,
    vocabulary: str | None = None,
    lower_case: bool | None = None,
) -> Start:
    """Reads `--init`, see `read_init`; it may name a sentence-transformers directory, too."""
    init = read_init(given, model, vocabulary, lower_case, ("encoder",), pooling=True)
    if init.config.summary == "last":
        raise UserError(
            f"{given} is an XLNet whose rows end with [CLS], and a sentence's begin with it here: "
            "give another encoder, or a run of xlnet_tiny or xlnet_base"
        )
    return init


def open_encoder(
    given: str,
    pooling: str | None = None,
    max_length: int | None = None,
    lower_case: bool | None = None,
) -> tuple[SentenceEncoder, EmbeddingRun | None]:
    """A sentence encoder that is ready to use, and its run, where it is one of this kind.

    Args:
        given: as for `read_start`, but for `none`.
        pooling: instead of its own; `"mean"` for one that never pooled.
        max_length: instead of its own.
        lower_case: as for `read_init`.
    """
    start, run = read_start(given, lower_case=lower_case), None
    source, config = start.source, start.config
    if isinstance(source.network, SiameseEncoder):
        location, own = locate(given), source.network
        run = None if location.without_recipe else EmbeddingRun.open(location.folder)
        options = {"pooling": pooling or own.pooling, "dtype": own.dtype_policy}
        network = SiameseEncoder.from_config({**own.get_config(), **options})
        network.build()
        network.set_weights(own.get_weights())
    else:
        network = SiameseEncoder(config, pooling or source.pooling or "mean", source.normalize)
        network.build()
        start.copy_to(network)
    if max_length is None:
        trained_length = start.trained_length or min(_LONGEST, config.max_length)
        max_length = source.max_length or trained_length
    elif config.longest is not None and config.longest < max_length:
        raise UserError(
            f"--max-length {max_length}: {given} has {config.longest} positions: give as many or "
            "less"
        )
    return SentenceEncoder(network, start.vocabulary, max_length), run


def encoder_of(options: argparse.Namespace) -> tuple[SentenceEncoder, EmbeddingRun | None]:
    """`open_encoder` of a command's options, on its devices."""
    given = (options.encoder, options.pooling, options.max_length, options.lower_case)
    with options.devices.scope():
        return open_encoder(*given)
