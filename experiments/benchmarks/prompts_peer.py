"""The peer of the prompts benchmark: one random GPT-2 in Hugging Face's hands and in ours."""

import itertools
import json
import os
import pathlib

import numpy as np

from macaron_tf.interop import (
    Pretrained,
    read_language_model,
)
from macaron_tf.models import EncoderConfig
from macaron_tf.text.byte_pairs import byte_alphabet

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
