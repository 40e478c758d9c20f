"""Sentence encoders: a run of Sentence-BERT, or any other encoder whose vectors are pooled."""

import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from experiments.embed.recipe import EmbeddingRecipe
from experiments.finetune.init import Init, read_init
from experiments.run import Run, read_kind
from macaron_tf.data.batches import Buckets, choose_lengths
from macaron_tf.data.tasks.encoding import encode_sentences
from macaron_tf.distribution.replicas import ReplicaMap
from macaron_tf.errors import UserError
from macaron_tf.io.progress import track
from macaron_tf.models.siamese import SiameseEncoder
from macaron_tf.pretrained import is_library, run_place
from macaron_tf.text import PieceVocabulary
from macaron_tf.text.token_rows import TokenRows

_LONGEST = 128  # of a model that does not say what it was trained on
# Lengths of batches: of STS-B's positions 9% are padding; with multiples of 8 it would be 24%.
_SHAPES = 16
_LONG = 2_000  # sentences from which on progress is shown


@dataclasses.dataclass(frozen=True)
class EmbeddingRun(Run):
    """A finished or running training of a sentence encoder."""

    recipe_class = EmbeddingRecipe

    def build_network(self) -> SiameseEncoder:
        recipe = self.recipe
        network = SiameseEncoder(
            recipe.model_config(self.vocabulary.size),
            recipe.pooling,
            recipe.normalize,
            recipe.num_classes,
            recipe.concatenation,
            dtype=recipe.training.dtype_policy,
        )
        network.build()
        return network


class SentenceEncoder:
    """Vectors of sentences; a batch holds sentences of about one length.

    One `tf.function` with a relaxed signature serves all shapes and is traced once; it reads the
    network's current weights. Replicas of the strategy in whose scope it is made share the batches.

    Args:
        network: built.
        vocabulary: the one it was trained with.
        max_length: longest row, special ids included; longer sentences are cut.
        max_tokens: padded tokens of a batch.
    """

    def __init__(
        self,
        network: SiameseEncoder,
        vocabulary: PieceVocabulary,
        max_length: int,
        max_tokens: int = 8192,
    ):
        self.network = network
        self.vocabulary = vocabulary
        self.max_length = max_length
        self.max_tokens = max(max_tokens, max_length)
        # A partial: TensorFlow counts the traces of a method over all of its objects.
        forward = functools.partial(_forward, network)
        rows = tf.TensorSpec((None, None), tf.int32)
        vectors = tf.function(forward, input_signature=[rows], autograph=False)
        self._vectors = ReplicaMap(tf.distribute.get_strategy(), vectors)

    @property
    def width(self) -> int:
        """D."""
        return self.network.config.hidden_dim

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors `(N, D)` float32 of N sentences, in their order.

        An empty one is encoded too, as its two special ids. Long ones are cut, with one warning
        for all on stderr.
        """
        rows, cut = encode_sentences(self.vocabulary, texts, self.max_length)
        warn_cut(cut, len(texts), self.max_length)
        return self.of_rows(rows)

    def of_rows(self, rows: TokenRows) -> np.ndarray:
        """Vectors `(N, D)` of tokenized sentences.

        Args:
            rows: N rows, special ids included, none longer than `max_length`.
        """
        found = np.empty((len(rows.lengths), self.width), np.float32)
        if not len(found):
            return found
        lengths = choose_lengths(rows.lengths, _SHAPES, multiple=1)
        plan = Buckets(lengths, self.max_tokens).plan(rows.lengths, None)
        # The last batch alone has rows of padding: of one short query they would be 500.
        positions = [batch.rows[batch.rows >= 0] for batch in plan]

        def batches() -> Iterator[tuple[np.ndarray]]:
            for own, batch in zip(positions, plan, strict=True):
                yield (rows.padded(own, batch.length),)

        results = zip(positions, self._vectors(batches()), strict=True)
        if len(found) >= _LONG:
            sized = ((len(own), (own, result)) for own, result in results)
            results = track(sized, len(found), "encoding", "sentences")
        for own, result in results:
            found[own] = result["vectors"]
        return found

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


def _forward(network: SiameseEncoder, token_ids: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"vectors": network({"token_ids": token_ids}, training=False)}  # (B, L) -> (B, D)


def read_start(
    given: str,
    model: str | None = None,
    vocabulary: str | None = None,
    lower_case: bool | None = None,
) -> Init:
    """Reads `--init`, see `read_init`; it may name a sentence-transformers directory, too.

    Raises:
        UserError: as `read_init`; or an encoder whose rows do not begin with [CLS].
    """
    init = read_init(given, model, vocabulary, lower_case, pooling=True)
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
    """A sentence encoder that is ready to use; of a run of this kind its classifier too.

    Args:
        given: as for `read_start`, but for `none`.
        pooling: instead of its own; `"mean"` for one that never pooled.
        max_length: instead of its own.
        lower_case: as for `read_init`.

    Returns:
        The encoder, and the run, where it is one of this kind.

    Raises:
        UserError: as `read_start`; there is no such checkpoint, or the model has fewer positions.
    """
    run, (path, checkpoint) = None, (None, None) if is_library(given) else run_place(given)
    if path and (path / "recipe.json").is_file() and read_kind(path) == EmbeddingRecipe.kind:
        run = EmbeddingRun.open(path)
        if pooling:
            recipe = dataclasses.replace(run.recipe, pooling=pooling)
            run = dataclasses.replace(run, recipe=recipe)
        network, vocabulary = run.load_network(checkpoint), run.vocabulary
        own_length = run.recipe.max_length
    else:
        start = read_start(given, lower_case=lower_case)
        vocabulary, config, source = start.vocabulary, start.config, start.source
        network = SiameseEncoder(config, pooling or source.pooling or "mean", source.normalize)
        network.build()
        start.copy_to(network)
        trained_length = start.trained_length or min(_LONGEST, config.max_length)
        own_length = source.max_length or trained_length
    longest = network.config.longest
    if max_length is not None and longest is not None and longest < max_length:
        raise UserError(
            f"--max-length {max_length}: {given} has {longest} positions: give as many or less"
        )
    max_length = own_length if max_length is None else max_length
    return SentenceEncoder(network, vocabulary, max_length), run
