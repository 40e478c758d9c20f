"""Language models of the transformers library with random weights and tiny vocabularies."""

import json

import numpy as np
import pytest

from macaron_tf.text.byte_pairs import BYTE_ALPHABET
from tests.toys.hugging_face import save_random

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LENGTH = 16
SHAPES = {"vocab_size": 37, "n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": LENGTH}
V = 29
XLNET = {
    "vocab_size": V,
    "d_model": 32,
    "d_inner": 48,
    "n_layer": 3,
    "n_head": 4,
    "mem_len": 6,
    "initializer_range": 0.3,
}
LLAMA = {
    **{"vocab_size": 37, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "max_position_embeddings": LENGTH},
}
END = "<|endoftext|>"
FAMILIES = {
    "gpt": ("OpenAIGPT", {**SHAPES, "afn": "gelu"}),
    "gpt of relu": ("OpenAIGPT", {**SHAPES, "afn": "relu"}),
    "gpt2": ("GPT2", SHAPES),
    "gpt2 of another width": ("GPT2", {**SHAPES, "n_inner": 48, "activation_function": "gelu"}),
    "llama": ("Llama", {**LLAMA, "num_key_value_heads": 2, "head_dim": 6}),
    "llama of one table": ("Llama", {**LLAMA, "tie_word_embeddings": True, "hidden_act": "gelu"}),
    "llama of slower turns": (
        "Llama",
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 9.0}},
    ),
    "llama 3": (
        "Llama",
        {
            **LLAMA,
            "rope_parameters": {
                **{"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0},
                **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
                "original_max_position_embeddings": 12,
            },
        },
    ),
    "qwen 3": ("Qwen3", {**LLAMA, "num_key_value_heads": 2, "head_dim": 6}),
    "olmo 2": ("Olmo2", {**LLAMA, "num_key_value_heads": 2}),
    "xlnet": ("XLNet", XLNET),
}


def write_merges(directory, names, merges, last=()) -> int:
    """Writes vocab.json and merges.txt; returns the number of ids."""
    names = [*names, *(merge.replace(" ", "") for merge in merges), *last]
    (directory / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    return len(names)


def write_vocabulary(directory) -> int:
    """Writes GPT-2's tokenizer files with four merges; the end-of-text token comes last."""
    return write_merges(directory, BYTE_ALPHABET, ["h e", "l l", "he ll", "Ġ w"], [END])


def write_gpt_vocabulary(directory) -> int:
    """Writes GPT's tokenizer files with few merges; `<unk>` comes first."""
    letters = [*"abcdefghijklmnopqrstuvwxyz.,'"]
    merges = ["h e", "l l", "t he</w>", "h e</w>", "he ll", "w he", "e l</w>", "w e"]
    names = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters)]
    return write_merges(directory, names, merges)


def make(family, directory, head="", **options):
    """Saves a Hugging Face model with random weights; returns the model."""
    name, settings = FAMILIES[family]
    head = head or ("ForCausalLM" if name in ("Llama", "Qwen3", "Olmo2") else "LMHeadModel")
    if name == "GPT2" or family == "llama of one table":
        options = {"vocab_size": write_vocabulary(directory), **options}
    config = getattr(transformers, f"{name}Config")(**{**settings, **options})
    return save_random(getattr(transformers, name + head), config, directory)


def hidden_states(theirs, batch, **more):
    """Returns the outputs of a Hugging Face XLNet for a batch with our feature names."""
    with torch.no_grad():
        return theirs(
            input_ids=torch.tensor(batch["token_ids"]),
            token_type_ids=torch.tensor(batch["segment_ids"]),
            **more,
        )


def stream_inputs(batch) -> dict:
    """Returns the inputs of a Hugging Face XLNet that give a batch its order and its targets."""
    order = batch["order"]
    # 1 where i must not see j; the content stream always sees itself.
    hidden = (order[:, None, :] >= order[:, :, None]) & (order[:, None, :] >= 0)
    mapping = np.eye(order.shape[1], dtype="float32")[batch["masked_positions"]]  # `(B, P, L)`
    return {
        "perm_mask": torch.tensor(hidden.astype("float32")),
        "target_mapping": torch.tensor(mapping),
    }
