"""The models of the serving benchmark: a random BERT in each library, and a translator."""

import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from experiments.benchmarks.made_up_text import made_up_texts
from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.decoding import BeamSearchConfig, translate_ids
from macaron_tf.errors import UserError
from macaron_tf.interop import read_encoder
from macaron_tf.models import EncoderConfig, catalog
from macaron_tf.models.tasks import EncoderClassifier
from macaron_tf.special_ids import EOS, PAD
from macaron_tf.text import SentencePieceVocabulary
from macaron_tf.text.wordpiece import WordPieceVocabulary

IN_MEMORY, SAVED_MODEL = "graph in memory", "SavedModel"
LABELS = ("negative", "positive")
# Lines of text to their answers, an array's rows.
Answer = Callable[[Sequence[str]], np.ndarray]


def made_up_lines(count: int, longest: int, seed: int) -> list[str]:
    """Lines of 2 to `longest` made-up words, short ones as likely as long ones by their logarithm.

    Args:
        count: how many lines.
        longest: words of the longest, 2 or more.
        seed: the same gives the same lines.
    """
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(np.log(2), np.log(longest + 1), count)).astype(int)
    words = itertools.chain.from_iterable(text.split() for text in made_up_texts(seed))
    return [" ".join(itertools.islice(words, length)) for length in lengths]


class HuggingFaceClassifier:
    """A `BertForSequenceClassification` of random weights with its fast tokenizer.

    Args:
        config: the shape; its vocabulary is the given one's.
        vocabulary: whose words the tokenizer takes.
        max_length: longest row.
        seed: of the weights. They are drawn five times as wide as BERT's: answers then differ
            from text to text, so that agreement means something.
    """

    def __init__(
        self, config: EncoderConfig, vocabulary: WordPieceVocabulary, max_length: int, seed: int
    ):
        import torch
        import transformers

        torch.manual_seed(seed)
        self._torch = torch
        self._max_length = max_length
        self.vocabulary = vocabulary
        self.tokenizer = transformers.BertTokenizerFast(
            vocab={word: number for number, word in enumerate(vocabulary.words)},
            do_lower_case=vocabulary.lower_case,
        )
        settings = transformers.BertConfig(
            vocab_size=vocabulary.size,
            hidden_size=config.hidden_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.feed_forward_dim,
            max_position_embeddings=config.max_length,
            initializer_range=0.1,
            num_labels=len(LABELS),
            attn_implementation="sdpa",
        )
        self.model = transformers.BertForSequenceClassification(settings).eval()

    def answer(self, lines: Sequence[str]) -> np.ndarray:
        """Lines `(B,)` to probabilities `(B, C)`."""
        inputs = self.tokenizer(
            list(lines),
            padding=True,
            truncation=True,
            max_length=self._max_length,
            return_tensors="pt",
        )
        with self._torch.inference_mode():
            return self.model(**inputs).logits.float().softmax(-1).numpy()

    def ours(self, directory: pathlib.Path, dtype: str = "float32") -> EncoderClassifier:
        """Our classifier with the same weights, read from what `save_pretrained` writes.

        Args:
            directory: for those files.
            dtype: a Keras dtype policy.
        """
        self.model.save_pretrained(directory)
        self.vocabulary.save(directory)
        # Hugging Face's name of the same lines.
        (directory / "vocab.txt").write_bytes(self.vocabulary.contents())
        read = read_encoder(directory, lower_case=self.vocabulary.lower_case)
        copied = read.classifier(len(LABELS))
        network = EncoderClassifier(copied.config, len(LABELS), dtype=dtype)
        network.build()
        network.set_weights(copied.get_weights())
        head = self.model.classifier
        kernel, bias = (value.detach().float().numpy() for value in (head.weight, head.bias))
        network.head.dense.set_weights([kernel.T, bias])
        return network

    def to_bfloat16(self) -> "HuggingFaceClassifier":
        """Makes the model's weights and arithmetic bfloat16, and returns the same object."""
        self.model.to(self._torch.bfloat16)
        return self


def saved_classifier(
    network: EncoderClassifier,
    vocabulary: WordPieceVocabulary,
    max_length: int,
    folder: pathlib.Path,
) -> Answer:
    """Our classifier exported by `export.keras_model` and loaded by TensorFlow alone.

    Args:
        max_length: longest row, in ids.
        folder: made for the SavedModel.
    """
    words = ("--labels", *LABELS, "--max-length", str(max_length))
    return _loaded(_exported(network, vocabulary, folder, *words), "probabilities")


def _exported(network, vocabulary, folder: pathlib.Path, *words: str) -> str:
    """Runs `export.keras_model` in a process of its own: experiments do not import export."""
    folder.mkdir(parents=True, exist_ok=True)
    network.save(folder / "model.keras")
    vocabulary.save(folder)
    places = [str(folder / "model.keras"), str(folder), str(folder / "served")]
    command = [sys.executable, "-m", "export.keras_model", *places, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError("`python -m export.keras_model` failed: its message is above")
    return done.stdout.strip().splitlines()[-1]


def _loaded(path: os.PathLike, output: str) -> Answer:
    model = tf.saved_model.load(os.fspath(path))
    # The signature is looked up anew, for it does not keep the model alive.
    return lambda lines: model.signatures["serving_default"](text=tf.constant(lines))[
        output
    ].numpy()


def keras_classifier(
    network: EncoderClassifier, vocabulary: WordPieceVocabulary, max_length: int, predict: bool
) -> Answer:
    """The model in memory.

    Args:
        predict: by Keras's `predict_on_batch`, a graph; else op by op, as a call does it.
    """

    def answer(lines: Sequence[str]) -> np.ndarray:
        inputs = encode_pairs(vocabulary, tf.constant(lines), None, max_length)
        logits = network.predict_on_batch(inputs) if predict else network(inputs, training=False)
        return tf.nn.softmax(tf.cast(logits, tf.float32)).numpy()

    return answer


def translators(
    size: str, lines: Sequence[str], new_tokens: int, folder: pathlib.Path
) -> dict[str, Answer]:
    """A random translator with beam search, text to text: its graph in memory, its SavedModel.

    Args:
        size: of the catalog's translators.
        lines: its vocabulary is trained on.
        new_tokens: of every translation, so that all take as many steps.
        folder: for the SavedModel.

    Returns:
        By name, functions of lines that give their translations as strings `(B, 1)`.
    """
    vocabulary = SentencePieceVocabulary.train(
        lines, 1000, masks=False, languages=("en", "de"), character_coverage=1.0
    )
    network = catalog.build(f"transformer_{size}", vocab_size=vocabulary.size)
    config = BeamSearchConfig(
        length_penalty=0.0,
        max_length=new_tokens,
        min_length=new_tokens - 1,
        max_length_ratio=0.0,
        max_length_offset=new_tokens,
    )

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((None,), tf.string)])
    def graph(lines):
        rows = vocabulary.encode(lines, "en")
        end = tf.fill([tf.shape(lines)[0], 1], EOS)
        source = tf.concat([rows, end], axis=1).to_tensor(PAD)
        return vocabulary.decode(
            translate_ids(network, source, config, vocabulary.pieces)["ids"][:, 0]
        )

    decoding = json.dumps(dataclasses.asdict(config))
    saved = _exported(network, vocabulary, folder, "--decoding", decoding)
    return {
        IN_MEMORY: lambda lines: graph(tf.constant(lines)).numpy()[:, None],
        SAVED_MODEL: _loaded(saved, "translations"),
    }
