"""Models of transformers and CTranslate2 with random weights, for the decoding benchmarks."""

import itertools
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from experiments.lab.benchmarks.harness import set_threads
from macaron_tf.errors import needed
from macaron_tf.hub import ModelParts, read_hugging_face
from macaron_tf.hub.families import FAMILIES
from macaron_tf.models import EncoderConfig
from macaron_tf.models.config import EncoderDecoderConfig, StackConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.special import Special
from macaron_tf.text.byte_pairs import BYTE_ALPHABET

# Weight types of CTranslate2.
COMPUTE_TYPES = ("float32", "int8")
# Standard deviations of the matrices and the embeddings in `MarianPeer`.
MATRIX_STD, EMBEDDING_STD = 0.03, 0.2


def set_up(threads: int, inter_op_threads: int | None = None) -> None:
    """Sets the number of threads of PyTorch and TensorFlow."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    # All models have random weights, so transformers downloads no files.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with needed("the benchmark", "-r requirements/peers.txt, as `make bench` does"):
        import torch
        import transformers  # noqa: F401

    torch.set_num_threads(threads)
    set_threads(threads, inter_op_threads)


class HuggingFacePeer:
    """A model with random weights from the library transformers.

    Args:
        config: configuration of the same model in this library.
        settings: settings that `config` does not have, with the names in transformers.
    """

    def __init__(self, model_class: type, config: StackConfig, seed: int = 0, **settings: Any):
        import torch

        torch.manual_seed(seed)
        self._torch = torch
        config_class = model_class.config_class
        fields = FAMILIES[config_class.model_type].fields(config)
        settings = {"vocab_size": config.vocab_size, **fields, **settings}
        self.model = model_class(config_class(**settings)).eval()

    def generate(self, rows: np.ndarray, count: int, **options: Any) -> np.ndarray:
        """Generates exactly `count` tokens for each source or prompt: `(B, P) -> (B, count)`."""
        ids = self._torch.from_numpy(rows.astype(np.int64))
        with self._torch.inference_mode():
            token_ids = self.model.generate(
                input_ids=ids,
                attention_mask=self._torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=count,
                max_new_tokens=count,
                **options,
            )
        return token_ids[:, -count:].numpy()


class MarianPeer(HuggingFacePeer):
    """A MarianMTModel of transformers, whose random weights lead to outputs with varied tokens.

    With the usual initial weights, the model repeats one token, so equal outputs of two libraries
    would prove little. Therefore the embeddings are large. The next token then depends more on the
    last token than on the position. The weights of the last LayerNorm in the decoder have random
    signs. The tied output matrix then does not favour the last token.
    """

    def __init__(self, config: EncoderDecoderConfig):
        import transformers

        special = Special()
        super().__init__(
            transformers.MarianMTModel,
            config,
            pad_token_id=special.pad,
            decoder_start_token_id=special.begin,
            eos_token_id=special.end,
            forced_eos_token_id=special.end,
            init_std=MATRIX_STD,
        )
        with self._torch.no_grad():
            self.model.model.shared.weight.mul_(EMBEDDING_STD / MATRIX_STD)
            signs = self.model.model.decoder.layers[-1].final_layer_norm.weight
            signs.copy_(self._torch.randn_like(signs).sign())

    def as_macaron_tf(self) -> EncoderDecoder:
        """Builds an encoder-decoder of this library with the weights of this Hugging Face model."""
        with tempfile.TemporaryDirectory() as folder:
            self.model.save_pretrained(folder)
            return read_hugging_face(folder).network


def _in_ctranslate2(runner_class: type, spec: Any, threads: int, compute_type: str) -> Any:
    """Loads the output `spec` of a converter into CTranslate2."""
    spec.validate()
    with tempfile.TemporaryDirectory() as directory:
        spec.save(directory)
        return runner_class(
            directory, compute_type=compute_type, inter_threads=1, intra_threads=threads
        )


def _tokens(rows: Iterable[Iterable[int]]) -> list[list[str]]:
    """Converts ids to strings such as "17", which serve as subword tokens in CTranslate2."""
    return [[str(i) for i in row] for row in rows]


def ctranslate2_translator(
    peer: MarianPeer, threads: int, compute_type: str, count: int, beam_size: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a beam search in CTranslate2, `(B, S) -> (B, count)`. The outputs have no EOS."""
    from ctranslate2 import Translator
    from ctranslate2.converters.transformers import BartLoader

    # The MarianMT converter needs tokenizer files and Marian's padding id, so the BART converter is
    # used. The network equals BART without the LayerNorm after the embeddings.
    config, special = peer.model.config, Special()
    config.normalize_before = config.normalize_embedding = False
    spec = BartLoader().get_model_spec(peer.model)
    [names] = _tokens([range(config.vocab_size)])
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token = spec.config.decoder_start_token = names[special.begin]
    spec.config.eos_token, spec.config.unk_token = names[special.end], names[special.unk]
    spec.config.add_source_eos = spec.config.add_source_bos = False
    translator = _in_ctranslate2(Translator, spec, threads, compute_type)
    limits = {"min_decoding_length": count, "max_decoding_length": count}

    def translate(source: np.ndarray) -> np.ndarray:
        results = translator.translate_batch(
            _tokens(source), beam_size=beam_size, length_penalty=0.0, **limits
        )
        return np.array([[int(token) for token in result.hypotheses[0]] for result in results])

    return translate


class GPT2Peer(HuggingFacePeer):
    """A GPT2LMHeadModel of transformers with random weights. Its last id ends a text."""

    def __init__(self, config: EncoderConfig):
        import transformers

        super().__init__(
            transformers.GPT2LMHeadModel,
            config,
            eos_token_id=config.vocab_size - 1,
            bos_token_id=config.vocab_size - 1,
        )

    def as_macaron_tf(self, directory: pathlib.Path) -> ModelParts:
        """Builds a language model of this library with the weights of this Hugging Face model.

        The vocabulary of the model is a byte-level BPE of single bytes, pairs of bytes and the
        end-of-text token.
        """
        self.model.save_pretrained(directory)
        letters = sorted(BYTE_ALPHABET)
        count = self.model.config.vocab_size - len(letters) - 1
        pairs = list(itertools.islice(itertools.product(letters, repeat=2), count))
        names = [*letters, *map("".join, pairs), "<|endoftext|>"]
        ids = {name: token_id for token_id, name in enumerate(names)}
        (directory / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
        merges = "\n".join(["#version: 0.2", *map(" ".join, pairs), ""])
        (directory / "merges.txt").write_text(merges, encoding="utf-8")
        return read_hugging_face(directory)


def ctranslate2_generator(
    peer: GPT2Peer, threads: int, compute_type: str, count: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns greedy decoding in CTranslate2, `(B, P) -> (B, count)`."""
    from ctranslate2 import Generator
    from ctranslate2.converters.transformers import GPT2Loader

    spec = GPT2Loader().get_model_spec(peer.model)
    [names] = _tokens([range(peer.model.config.vocab_size)])
    spec.register_vocabulary(names)
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = names[-1]
    generator = _in_ctranslate2(Generator, spec, threads, compute_type)
    options = {"min_length": count, "max_length": count, "include_prompt_in_result": False}

    def generate(rows: np.ndarray) -> np.ndarray:
        results = generator.generate_batch(_tokens(rows), **options)
        return np.array([result.sequences_ids[0] for result in results])

    return generate
