"""Encoders of the transformers library with random weights and tiny vocabularies."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from macaron_tf.hub.tokenizers.parts import CONTROLS, SINGLE_SPACES, STRIP, metaspace
from macaron_tf.text.byte_pairs import BYTE_ALPHABET
from tests.toys.hugging_face import save_random
from tests.toys.peer_language_models import write_merges

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##b", "##c", *"ijklmno"]
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
SHAPES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
SHAPES["num_attention_heads"] = 4
OTHER_SHAPES = {
    "XLM": {"emb_dim": 32, "n_heads": 4, "n_layers": 3},
    "DistilBert": {"dim": 32, "hidden_dim": 64, "n_layers": 3, "n_heads": 4},
}
# Class name of the family, further settings, vocabulary type, padding id.
FAMILIES = {
    "bert": ("Bert", {"type_vocab_size": 3}, "words", 0),
    "bert of the tanh form": ("Bert", {"hidden_act": "gelu_new"}, "words", 0),
    "bert of relu": ("Bert", {"hidden_act": "relu"}, "words", 0),
    "roberta": ("Roberta", {"type_vocab_size": 1, "hidden_act": "relu"}, "bytes", 1),
    "xlm-roberta": ("XLMRoberta", {"type_vocab_size": 2}, "fairseq", 1),
    "albert": ("Albert", {"embedding_size": 16, "type_vocab_size": 2}, "albert", 0),
    "electra": ("Electra", {"embedding_size": 16, "hidden_act": "relu"}, "words", 0),
    "electra of one width": ("Electra", {"embedding_size": 32}, "words", 0),
    "distilbert": ("DistilBert", {}, "words", 0),
    "xlm": ("XLM", {"n_langs": 3}, None, 2),
    "xlm with its tokenizer": ("XLM", {"n_langs": 2, "lang2id": {"fr": 1, "en": 0}}, "moses", 2),
    "modernbert": ("ModernBert", {"local_attention": 6, "num_hidden_layers": 4}, "modern", 259),
    "modernbert of its parameters": (
        "ModernBert",
        {
            **{"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
            **{"local_attention": 5, "hidden_activation": "relu"},
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0},
                "sliding_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 20.0},
            },
        },
        "modern",
        259,
    ),
    "xlm of one language": ("XLM", {"n_langs": 1, "gelu_activation": False}, None, 2),
}
LENGTH = 16


def write_vocabulary(kind, directory) -> int:
    """Writes the files of a tokenizer type, such as "words"; returns the number of ids."""
    if kind is None:
        return 37
    if kind == "words":
        (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
        (directory / "tokenizer_config.json").write_text('{"do_lower_case": true}')
        return len(WORDS)
    if kind == "bytes":
        return write_merges(directory, [*FAIRSEQ, *BYTE_ALPHABET, "<mask>"], [])
    if kind == "moses":
        special = ["<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))]
        names = [*special, *"abcdefgh", *(f"{letter}</w>" for letter in "abcdefgh")]
        size = write_merges(directory, names, [])
        (directory / "merges.txt").write_text("a b 1\n")
        return size
    if kind == "modern":
        whole = Tokenizer(models.BPE({name: n for n, name in enumerate(BYTE_ALPHABET)}, []))
        whole.normalizer = normalizers.NFC()
        whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        whole.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
        whole.save(str(directory / "tokenizer.json"))
        return whole.get_vocab_size()
    names = [*FAIRSEQ, *"▁abcdefgh", "<mask>"]
    if kind == "albert":
        names = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", *"▁abcdefgh"]
    model = {"type": "Unigram", "vocab": [[name, -1.0] for name in names]}
    steps = [CONTROLS, STRIP, SINGLE_SPACES]
    whole = {
        "model": {**model, "unk_id": names.index("<unk>")},
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": metaspace("always"),
    }
    (directory / "tokenizer.json").write_text(json.dumps(whole))
    return len(names)


def make(family, kind, directory, **options):
    """Saves a Hugging Face model with random weights; returns the model.

    `kind` is the end of its class name, such as "ForMaskedLM".
    """
    name, settings, vocabulary, pad = FAMILIES[family]
    shapes = OTHER_SHAPES.get(name, SHAPES)
    padding = {"pad_token_id": pad} if name == "ModernBert" else {}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=write_vocabulary(vocabulary, directory),
        max_position_embeddings=LENGTH + 2,
        **{**shapes, **padding, **settings, **options},
    )
    return save_random(getattr(transformers, name + kind), config, directory)


def batch(model, family):
    """Returns padded rows of Hugging Face ids: `(4, 13)`.

    The rows have segment ids or language ids if the model has segment or language embeddings.
    """
    padding = FAMILIES[family][3]
    rng = np.random.default_rng(0)
    config = model.config
    ids = rng.integers(4, config.vocab_size, (4, 13))
    lengths = np.array([13, 9, 2, 12])[:, None]
    real = np.arange(13) < lengths
    inputs = {"input_ids": np.where(real, ids, padding), "attention_mask": real.astype(int)}
    if getattr(config, "type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = (np.arange(13) >= lengths // 2).astype(int) * real
    if getattr(config, "n_langs", 1) > 1:
        inputs["langs"] = rng.integers(0, config.n_langs, (4, 13))
    return inputs


def ours_of(theirs):
    """Returns a batch of Hugging Face ids with our feature names."""
    names = {"token_type_ids": "segment_ids", "langs": "language_ids"}
    found = {names[name]: rows.astype("int32") for name, rows in theirs.items() if name in names}
    return {**found, "token_ids": theirs["input_ids"].astype("int32")}


def call(model, inputs):
    with torch.no_grad():
        return model(
            **{name: torch.tensor(rows).long() for name, rows in inputs.items()},
            output_hidden_states=True,
        )


def masked_head(family):
    return "WithLMHeadModel" if FAMILIES[family][0] == "XLM" else "ForMaskedLM"
