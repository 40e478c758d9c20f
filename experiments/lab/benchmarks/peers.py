"""Models of transformers and CTranslate2 with random weights, for the decoding benchmarks."""

import itertools
import json
import os
import pathlib
import tempfile
from typing import Any

import numpy as np

from experiments.lab.benchmarks.harness import set_threads
from macaron_tf.decoding import BeamSearchConfig
from macaron_tf.errors import UserError
from macaron_tf.hub import ModelParts, import_encoder_decoder, read_hugging_face
from macaron_tf.models import EncoderConfig
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.special import Special
from macaron_tf.text.byte_pairs import byte_alphabet

# Weight types of CTranslate2.
COMPUTE_TYPES = ("float32", "int8")
# Standard deviations of the matrices and the embeddings in `MarianPeer`.
MATRIX_STD, EMBEDDING_STD = 0.03, 0.2


def set_up(threads: int, inter_op_threads: int | None = None) -> None:
    """Sets the number of threads of PyTorch and TensorFlow.

    `threads` counts PyTorch's threads and TensorFlow's intra-op threads. The inter-op threads are
    by default as many.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    # All models have random weights, so transformers downloads no files.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"the libraries to compare with are not installed ({error.name} is missing): run "
            "`make bench`, which installs them into .venv-peers"
        ) from None
    torch.set_num_threads(threads)
    set_threads(threads, inter_op_threads)


def exact_search(new_tokens: int, beam_size: int = BeamSearchConfig.beam_size) -> BeamSearchConfig:
    """Returns beam search settings with which every output has exactly `new_tokens` tokens."""
    return BeamSearchConfig(
        beam_size=beam_size,
        length_penalty=0.0,
        max_length_ratio=0.0,
        max_length_offset=new_tokens,
        max_length=new_tokens,
        min_length=new_tokens - 1,
    )


class HuggingFacePeer:
    """A model with random weights from the library transformers."""

    def __init__(self, model_class: type, seed: int = 0, **settings: Any):
        import torch

        torch.manual_seed(seed)
        self._torch = torch
        self.model = model_class(model_class.config_class(**settings)).eval()

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
            vocab_size=config.vocab_size,
            d_model=config.hidden_dim,
            encoder_layers=config.num_encoder_layers,
            decoder_layers=config.num_decoder_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.feed_forward_dim,
            decoder_ffn_dim=config.feed_forward_dim,
            activation_function="relu",
            scale_embedding=True,
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
        state = {name: value.numpy() for name, value in self.model.state_dict().items()}
        return import_encoder_decoder(state, self.model.config.to_dict()).network


def in_ctranslate2(runner_class: type, spec: Any, threads: int, compute_type: str) -> Any:
    """Loads a converted model into CTranslate2.

    `spec` is the output of a converter, and `compute_type` is one of `COMPUTE_TYPES`.
    """
    spec.validate()
    with tempfile.TemporaryDirectory() as directory:
        spec.save(directory)
        return runner_class(
            directory, compute_type=compute_type, inter_threads=1, intra_threads=threads
        )


def _tokens(rows: np.ndarray) -> list[list[str]]:
    """Converts ids to strings such as "17", which serve as subword tokens in CTranslate2."""
    return [[str(i) for i in row] for row in rows]


class CTranslate2Peer:
    """A CTranslate2 translator with the weights of a `MarianPeer`."""

    def __init__(self, peer: MarianPeer, threads: int, compute_type: str = "float32"):
        from ctranslate2 import Translator
        from ctranslate2.converters.transformers import BartLoader

        # The MarianMT converter needs tokenizer files and Marian's padding id, so the BART
        # converter is used. The network equals BART without the LayerNorm after the embeddings.
        config = peer.model.config
        config.normalize_before = config.normalize_embedding = False
        spec = BartLoader().get_model_spec(peer.model)
        [names] = _tokens([range(config.vocab_size)])
        spec.register_source_vocabulary(names)
        spec.register_target_vocabulary(names)
        special = Special()
        spec.config.bos_token = spec.config.decoder_start_token = names[special.begin]
        spec.config.eos_token, spec.config.unk_token = names[special.end], names[special.unk]
        spec.config.add_source_eos = spec.config.add_source_bos = False
        self._translator = in_ctranslate2(Translator, spec, threads, compute_type)

    def generate(self, source: np.ndarray, count: int, beam_size: int) -> np.ndarray:
        """Translates token ids `(B, S) -> (B, count)` by beam search; outputs have no EOS."""
        results = self._translator.translate_batch(
            _tokens(source),
            beam_size=beam_size,
            length_penalty=0.0,
            min_decoding_length=count,
            max_decoding_length=count,
        )
        return np.array([[int(token) for token in result.hypotheses[0]] for result in results])


class GPT2Peer(HuggingFacePeer):
    """A GPT2LMHeadModel of transformers with random weights. Its last id ends a text."""

    def __init__(self, config: EncoderConfig):
        import transformers

        super().__init__(
            transformers.GPT2LMHeadModel,
            vocab_size=config.vocab_size,
            n_embd=config.hidden_dim,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            n_inner=config.feed_forward_dim,
            n_positions=config.max_length,
            eos_token_id=config.vocab_size - 1,
            bos_token_id=config.vocab_size - 1,
        )

    def as_macaron_tf(self, directory: pathlib.Path) -> ModelParts:
        """Builds a language model of this library with the weights of this Hugging Face model.

        The vocabulary of the model is a byte-level BPE of single bytes, pairs of bytes and the
        end-of-text token.
        """
        self.model.save_pretrained(directory)
        byte_letters = sorted(byte_alphabet())
        count = self.model.config.vocab_size - len(byte_letters) - 1
        pairs = list(itertools.islice(itertools.product(byte_letters, repeat=2), count))
        names = [*byte_letters, *map("".join, pairs), "<|endoftext|>"]
        token_ids = {name: token_id for token_id, name in enumerate(names)}
        (directory / "vocab.json").write_text(json.dumps(token_ids), encoding="utf-8")
        merges = "\n".join(["#version: 0.2", *map(" ".join, pairs)])
        (directory / "merges.txt").write_text(merges + "\n", encoding="utf-8")
        return read_hugging_face(directory)


class CTranslate2GPT2:
    """A CTranslate2 generator with the weights of a `GPT2Peer`."""

    def __init__(self, peer: GPT2Peer, threads: int, compute_type: str = "float32"):
        from ctranslate2 import Generator
        from ctranslate2.converters.transformers import GPT2Loader

        spec = GPT2Loader().get_model_spec(peer.model)
        [names] = _tokens([range(peer.model.config.vocab_size)])
        spec.register_vocabulary(names)
        spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = names[-1]
        self._generator = in_ctranslate2(Generator, spec, threads, compute_type)

    def generate(self, rows: np.ndarray, count: int) -> np.ndarray:
        """Generates `count` tokens after each prompt by greedy decoding: `(B, P) -> (B, count)`."""
        results = self._generator.generate_batch(
            _tokens(rows), min_length=count, max_length=count, include_prompt_in_result=False
        )
        return np.array([result.sequences_ids[0] for result in results])
