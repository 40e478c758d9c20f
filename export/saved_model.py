"""A run as a SavedModel: strings in, strings out, the vocabulary inside.

    python -m export.saved_model RUN OUT [--checkpoint average] [--n-best 4]

takes a translation run, a fine-tuning run (see `export.fine_tuned`, `export.fine_tuned` and
`export.fine_tuned` for their signatures), a pre-training run that goes on with texts or a run of
`experiments.text_to_text`, which answers them (see `export.generator`), a run of
`experiments.elmo` (see `export.word_embedder`) or of `experiments.embed` (see `export.embedder`),
or as such `hugging-face:DIR`, the directory of a sentence-transformers model, and writes
OUT/VERSION, the layout that TensorFlow Serving watches. A server needs tensorflow and
tensorflow_text and nothing of this project.
"""

import argparse
import dataclasses
import os
import sys

import tensorflow as tf
from etils import epath

from experiments.kind import read_kind
from experiments.translate.run import TranslationRun, source_limit
from export.versions import write_version
from macaron_tf.decoding import BeamSearchConfig, score_ids, translate_ids
from macaron_tf.errors import UserError, exit_on_user_error
from macaron_tf.special_ids import EOS, PAD
from macaron_tf.text.pair_vocabulary import PairVocabulary
from macaron_tf.text.vocabulary import Vocabulary


class TranslationModule(tf.Module):
    """What a SavedModel holds: the vocabulary, the network and the search, as signatures.

    Signature `serving_default`: `text (B,)` strings to `translations (B, N)` strings and `scores
    (B, N)` float32, best first; an empty line gives an empty translation and score 0. Signature
    `score`: `source (B,)` and `target (B,)` strings to `log_probs (B,)`, natural logarithms of
    P(target | source) with its EOS, and `tokens (B,)` int32, the number of tokens they sum.

    A line that is not UTF-8, or is longer than `max_tokens` pieces, is an InvalidArgumentError: a
    server's client gets a 400 that says so, not the translation of half a line.

    Args:
        network: the trained `EncoderDecoder`.
        vocabulary: the one it was trained with.
        decoding: beam search settings, `n_best` included.
        max_tokens: pieces of the longest line that is taken, see `source_limit`.
    """

    def __init__(
        self,
        network,
        vocabulary: Vocabulary | PairVocabulary,
        decoding: BeamSearchConfig,
        max_tokens: int,
    ):
        super().__init__(name="translation")
        self.network = network
        self.vocabulary = vocabulary
        self.decoding = decoding
        self.max_tokens = max_tokens
        # What a SavedModel restores: variables and the tokenizer's resource.
        self.tracked = [*(weight.value for weight in network.weights), *vocabulary.trackables()]

    def ids(self, lines: tf.Tensor, language: str) -> tf.Tensor:
        """Lines `(B,)` to ids `(B, L)`, each row ending in EOS, PAD after."""
        lines = tf.strings.unicode_transcode(lines, "UTF-8", "UTF-8", errors="strict")
        rows = self.vocabulary.encode(lines, language)
        fits = tf.debugging.assert_less_equal(
            rows.row_lengths(),
            tf.constant(self.max_tokens, tf.int64),
            f"a line has more than {self.max_tokens} tokens: split it",
            summarize=1,
        )
        with tf.control_dependencies([fits]):
            rows = tf.identity(rows)
        end = tf.fill([tf.shape(lines)[0], 1], EOS)
        return tf.concat([rows, end], axis=1).to_tensor(PAD)

    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The `serving_default` signature."""
        source = self.ids(text, self.vocabulary.languages[0])
        found = translate_ids(self.network, source, self.decoding, self.vocabulary.pieces)
        n_best = self.decoding.n_best
        # (B, N, T) -> (B N, T)
        ids = tf.reshape(found["ids"], (-1, tf.shape(found["ids"])[2]))
        # (B N,) -> (B, N)
        translations = tf.reshape(self.vocabulary.decode(ids), (-1, n_best))
        empty = (source[:, 0] == EOS)[:, None]  # (B, 1)
        return {
            "translations": tf.where(empty, "", translations),
            "scores": tf.where(empty, 0.0, found["scores"]),
        }

    def score(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """The `score` signature."""
        languages = self.vocabulary.languages
        scored = score_ids(
            self.network, self.ids(source, languages[0]), self.ids(target, languages[1])
        )
        return {"log_probs": scored["log_probs"], "tokens": scored["lengths"]}

    def signatures(self) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """The concrete functions by signature name."""
        lines = {
            name: tf.TensorSpec((None,), tf.string, name) for name in ("text", "source", "target")
        }
        return {
            # autograph off: all control flow is tf.while_loop's.
            "serving_default": tf.function(self.translate, autograph=False).get_concrete_function(
                lines["text"]
            ),
            "score": tf.function(self.score, autograph=False).get_concrete_function(
                lines["source"], lines["target"]
            ),
        }


def export(
    run: TranslationRun,
    out: str | os.PathLike,
    checkpoint: str | None = None,
    version: int | None = None,
    **decoding,
) -> epath.Path:
    """Writes a run's translator as a new version in a folder.

    Args:
        run: the run.
        out: the model's folder, `gs://` included, one subfolder a version; made when absent.
        checkpoint: which weights, see `TranslationRun.checkpoint`.
        version: number of the version; by default one more than the greatest there is.
        decoding: fields of the recipe's beam search to replace, such as `n_best=4`.

    Returns:
        The version's folder. It appears under its name only when it is whole.

    Raises:
        UserError: the run has no such checkpoint, the version exists, or `out` cannot be written.
    """
    config = dataclasses.replace(run.recipe.decoding, **decoding)
    weights = run.checkpoint(checkpoint)
    network = run.load_network(weights)
    module = TranslationModule(network, run.vocabulary, config, source_limit(network))
    record = {
        "run": run.path.name,
        "checkpoint": weights.name,
        "decoding": dataclasses.asdict(config),
    }
    return write_version(module, run.vocabulary, record, out, version)


@exit_on_user_error
def main(arguments: list[str] | None = None) -> None:
    """The command; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m export.saved_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", help="folder of a trained run")
    parser.add_argument("out", help="folder of the served model; versions are subfolders")
    parser.add_argument(
        "--checkpoint", metavar="NAME", help="average, best, last or a step's number"
    )
    parser.add_argument("--version", type=int, help="number of the version; the next by default")
    parser.add_argument("--n-best", type=int, metavar="N", help="translations a line (default 1)")
    parser.add_argument("--beam-size", type=int, metavar="K", help="the recipe's by default")
    options = parser.parse_args(arguments)
    changes = {"n_best": options.n_best, "beam_size": options.beam_size}
    changes = {name: value for name, value in changes.items() if value is not None}
    kind = "embedding" if options.run.startswith("hugging-face:") else read_kind(options.run)
    others = ("finetuning", "embedding", "pretraining", "text_to_text", "elmo")
    if kind in others and changes:
        flag = next(iter(changes)).replace("_", "-")
        raise UserError(f"--{flag}: {options.run} is no translator, and searches nothing")
    if options.run.startswith("hugging-face:") and options.checkpoint:
        raise UserError(f"--checkpoint: {options.run} is no run and has one set of weights")
    # Each kind of model is only loaded for its own runs.
    if kind == "embedding":
        from export.embedder import export_embedder

        path = export_embedder(options.run, options.out, options.checkpoint, options.version)
    elif kind in ("pretraining", "text_to_text"):
        from export.generator import export_generator

        path = export_generator(options.run, options.out, options.checkpoint, options.version)
    elif kind == "elmo":
        from experiments.elmo.run import ElmoRun
        from export.word_embedder import export_word_embedder

        opened = ElmoRun.open(options.run)
        path = export_word_embedder(opened, options.out, options.checkpoint, options.version)
    elif kind == "finetuning":
        from experiments.finetune.run import FinetuningRun
        from export.fine_tuned import export_fine_tuned

        run = FinetuningRun.open(options.run)
        path = export_fine_tuned(run, options.out, options.checkpoint, options.version)
    else:
        run = TranslationRun.open(options.run)
        path = export(run, options.out, options.checkpoint, options.version, **changes)
    print(f"exported {path}; serve it with: python -m export.serve {options.out}")


if __name__ == "__main__":
    sys.exit(main())
