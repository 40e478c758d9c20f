"""The peers that decode: a random MarianMT model and a random GPT-2, theirs and ours."""

import itertools
import json
import os
import pathlib
import tempfile
from typing import Any

import numpy as np

from macaron_tf.errors import UserError
from macaron_tf.interop import (
    Pretrained,
    import_encoder_decoder,
    read_language_model,
)
from macaron_tf.models import EncoderConfig
from macaron_tf.models.config import EncoderDecoderConfig
from macaron_tf.models.encoder_decoder import EncoderDecoder
from macaron_tf.special_ids import BOS, EOS, PAD, UNK
from macaron_tf.text.byte_pairs import byte_alphabet


def require_peers() -> None:
    """Raises a UserError where PyTorch or transformers is missing."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"the peers are not installed ({error.name} is missing): run `make bench`, or "
            "`pip install -r experiments/benchmarks/requirements.txt` beside requirements.txt."
        ) from None


class HuggingFacePeer:
    """A MarianMTModel of random weights, decoded by `generate`.

    Args:
        config: the shape; its block and norm are Marian's own, a post-norm Transformer.
        threads: PyTorch's, within an operation.
    """

    def __init__(self, config: EncoderDecoderConfig, threads: int):
        import torch
        import transformers

        # No reaching out for files: the model is made here.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self._torch = torch
        settings = transformers.MarianConfig(
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
            pad_token_id=PAD,
            decoder_start_token_id=BOS,
            eos_token_id=EOS,
            forced_eos_token_id=EOS,
        )
        self.model = transformers.MarianMTModel(settings).eval()

    def our_model(self) -> EncoderDecoder:
        """Our encoder-decoder with the same weights."""
        state = {name: value.numpy() for name, value in self.model.state_dict().items()}
        return import_encoder_decoder(state, self.model.config.to_dict()).network

    def decode(self, source: np.ndarray, beam_size: int, length: int, **options: Any) -> np.ndarray:
        """The best output of exactly `length` tokens, the last an EOS: `(B, S) -> (B, length)`."""
        ids = self._torch.from_numpy(source.astype(np.int64))
        with self._torch.inference_mode():
            found = self.model.generate(
                input_ids=ids,
                attention_mask=self._torch.ones_like(ids),
                num_beams=beam_size,
                do_sample=False,
                length_penalty=0.0,
                min_new_tokens=length,
                max_new_tokens=length,
                **options,
            )
        return found[:, 1:].numpy()


class CTranslate2Peer:
    """The same model in CTranslate2, in float32.

    Args:
        peer: whose weights to convert.
        threads: within an operation.
    """

    def __init__(self, peer: HuggingFacePeer, threads: int):
        import ctranslate2
        from ctranslate2.converters.transformers import BartLoader

        # The converter's MarianMT class wants a tokenizer's files and Marian's own padding id;
        # the network is BART's, without the LayerNorm after the embeddings.
        config = peer.model.config
        config.normalize_before = config.normalize_embedding = False
        spec = BartLoader().get_model_spec(peer.model)
        names = [str(i) for i in range(config.vocab_size)]
        spec.register_source_vocabulary(names)
        spec.register_target_vocabulary(names)
        spec.config.bos_token = spec.config.decoder_start_token = names[BOS]
        spec.config.eos_token, spec.config.unk_token = names[EOS], names[UNK]
        spec.config.add_source_eos = spec.config.add_source_bos = False
        spec.validate()
        with tempfile.TemporaryDirectory() as directory:
            spec.save(directory)
            self._translator = ctranslate2.Translator(
                directory, compute_type="float32", inter_threads=1, intra_threads=threads
            )

    def decode(self, source: np.ndarray, beam_size: int, length: int) -> np.ndarray:
        """As `HuggingFacePeer.decode`, but its EOS is not returned."""
        found = self._translator.translate_batch(
            [[str(i) for i in row] for row in source],
            beam_size=beam_size,
            length_penalty=0.0,
            min_decoding_length=length,
            max_decoding_length=length,
        )
        return np.array([[int(token) for token in one.hypotheses[0]] for one in found])


_END = "<|endoftext|>"


class HuggingFaceGPT2:
    """A `GPT2LMHeadModel` of random weights, gone on from by greedy `generate`.

    Args:
        config: the shape, of GPT-2's own kind.
        threads: PyTorch's, within an operation.
    """

    def __init__(self, config: EncoderConfig, threads: int):
        import torch
        import transformers

        # No reaching out for files: the model is made here.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self._torch = torch
        settings = transformers.GPT2Config(
            vocab_size=config.vocab_size,
            n_embd=config.hidden_dim,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            n_inner=config.feed_forward_dim,
            n_positions=config.max_length,
            eos_token_id=config.vocab_size - 1,
            bos_token_id=config.vocab_size - 1,
        )
        self.model = transformers.GPT2LMHeadModel(settings).eval()

    def ours(self, directory: pathlib.Path) -> Pretrained:
        """Our language model with the same weights, read from what `save_pretrained` writes.

        Args:
            directory: for those files, and for a vocabulary of as many pieces: bytes, pairs of
                bytes and the end of a text.
        """
        self.model.save_pretrained(directory)
        letters = sorted(byte_alphabet())
        count = self.model.config.vocab_size - len(letters) - 1
        merges = [" ".join(pair) for pair in itertools.product(letters, repeat=2)][:count]
        names = [*letters, *(merge.replace(" ", "") for merge in merges), _END]
        numbers = {name: number for number, name in enumerate(names)}
        (directory / "vocab.json").write_text(json.dumps(numbers), encoding="utf-8")
        (directory / "merges.txt").write_text(
            "\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8"
        )
        return read_language_model(directory)

    def go_on(self, rows: np.ndarray, new_tokens: int) -> np.ndarray:
        """The likeliest tokens behind rows of its ids, none of them the end: `(B, P) -> (B, N)`."""
        ids = self._torch.from_numpy(rows.astype(np.int64))
        with self._torch.inference_mode():
            found = self.model.generate(
                input_ids=ids,
                attention_mask=self._torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
                pad_token_id=self.model.config.eos_token_id,
            )
        return found[:, rows.shape[1] :].numpy()
