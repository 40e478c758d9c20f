"""Toy Hugging Face models with random weights, and functions that compare arrays.

A BERT directory is written without Hugging Face packages.
"""

import json
import pathlib

import numpy as np

import macaron_tf
from macaron_tf.model import Model
from macaron_tf.models import EncoderConfig
from macaron_tf.models.model_parts import Card
from macaron_tf.text import WordPieceVocabulary
from tests.harness import numpy_of

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c", "cafe", "café"]
CONFIG = {
    "model_type": "bert",
    "vocab_size": len(WORDS),
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
}


def random_state(rows: int = len(WORDS)) -> dict[str, np.ndarray]:
    """Returns a dict mapping weight names of Hugging Face's BertForPreTraining to random arrays."""
    shapes = {
        "bert.embeddings.word_embeddings.weight": (rows, 8),
        "bert.embeddings.position_embeddings.weight": (12, 8),
        "bert.embeddings.token_type_embeddings.weight": (2, 8),
        "cls.predictions.bias": (rows,),
    }
    linears = {
        "bert.pooler.dense": (8, 8),
        "cls.predictions.transform.dense": (8, 8),
        "cls.seq_relationship": (2, 8),
    }
    norms = ["bert.embeddings.LayerNorm", "cls.predictions.transform.LayerNorm"]
    for layer in ("bert.encoder.layer.0", "bert.encoder.layer.1"):
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            linears[f"{layer}.attention.{part}"] = (8, 8)
        linears[f"{layer}.intermediate.dense"] = (16, 8)
        linears[f"{layer}.output.dense"] = (8, 16)
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (8,), f"{name}.bias": (8,)}
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 0.3, shape).astype("float32") for name, shape in shapes.items()}


def write_bert(
    directory: pathlib.Path,
    state: dict[str, np.ndarray] | None = None,
    config: dict | None = None,
    tokenizer_config: dict | None = None,
    words: list[str] | None = None,
) -> pathlib.Path:
    """Writes a Hugging Face BERT directory; `config` and `tokenizer_config` override fields."""
    import safetensors.numpy

    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    options = {"do_lower_case": True, **(tokenizer_config or {})}
    (directory / "tokenizer_config.json").write_text(json.dumps(options))
    (directory / "vocab.txt").write_text("\n".join(words or WORDS) + "\n", encoding="utf-8")
    arrays = random_state() if state is None else state
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    safetensors.numpy.save_file(arrays, directory / "model.safetensors")
    return directory


MODULES = ("Transformer", "Pooling", "Normalize")
MEAN = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}


def write_modules(directory: pathlib.Path, kinds=MODULES, pooling=MEAN, sentence=None) -> None:
    """Writes the sentence-transformers files that add modules to the model in `directory`."""
    package, folders = "sentence_transformers.models", ("", "1_Pooling", "2_Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": folders[i], "type": f"{package}.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling/config.json").write_text(json.dumps(pooling))
    if sentence is not None:
        (directory / "sentence_bert_config.json").write_text(json.dumps(sentence))


def noise(seed: int, shape) -> np.ndarray:
    """Returns noise to add to a weight, so that no bias is 0 and no LayerNorm is the identity."""
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype("float32")


def save_random(kind, config, directory):
    """Saves a Hugging Face PyTorch model with random weights; returns the model."""
    import torch

    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for seed, weight in enumerate(model.parameters()):
            weight.add_(torch.tensor(noise(seed, weight.shape)))
    model.save_pretrained(directory)
    return model


def copy_linear(theirs, ours) -> None:
    """Copies the weights of a PyTorch linear layer to our `Dense` layer."""
    weights = [theirs.weight.detach().numpy().T, theirs.bias.detach().numpy()]
    ours.set_weights(weights)


def check_equal(ours, theirs) -> None:
    """Asserts that two float arrays agree within 1e-5 and are not near 0 everywhere."""
    theirs = np.asarray(theirs)
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(numpy_of(ours), theirs, atol=1e-5, rtol=0)


def two_stream_batch(size: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns the features of two rows; each row predicts three tokens in a random order.

    The ids are from 6 to `size` - 1.
    """
    rng = np.random.default_rng(seed)
    ids = rng.integers(6, size, (2, 9))
    order = np.full((2, 9), -1)
    positions = np.array([[1, 4, 6], [0, 5, 8]])
    for row, places in zip(order, positions, strict=True):
        row[places] = rng.permutation(3)
    segments = np.arange(9) > np.array([[4], [6]])
    names = ("token_ids", "segment_ids", "order", "masked_positions")
    features = zip(names, (ids, segments, order, positions), strict=True)
    return {name: rows.astype("int32") for name, rows in features}


ROWS = np.array([[2, 5, 7, 3, 6, 3], [2, 9, 3, 0, 0, 0]], "int32")
SEGMENTS = np.array([[0, 0, 0, 0, 1, 1], [0] * 6], "int32")
BATCH = {"token_ids": ROWS, "segment_ids": SEGMENTS}
FORMAT = "hugging-face"


def encoder_config(**options) -> EncoderConfig:
    return EncoderConfig(16, 32, 64, 4, 2, max_length=20, **options)


def random(network, scale: float = 1.0):
    """Builds a network and adds scaled noise to its weights; returns the network."""
    network.build()
    for seed, weight in enumerate(network.weights):
        weight.assign_add(scale * noise(seed, weight.shape))
    return network


def with_vocabulary(network, **facts) -> Model:
    """Returns a model with random weights and a vocabulary."""
    return Model(random(network), WordPieceVocabulary(WORDS), card=Card(**facts))


def written(made: Model, place) -> dict:
    """Saves a model; returns the content of its config.json."""
    made.save_pretrained(place, format=FORMAT)
    return json.loads((place / "config.json").read_text())


def read_back(made: Model, place) -> Model:
    """Saves a model as a Hugging Face folder; returns the model that is read from there."""
    made.save_pretrained(place, format=FORMAT)
    return macaron_tf.load(f"hugging-face:{place}")


def opened(kind, place, **options):
    """Opens a folder with a class of transformers; no weight may be missing or unexpected.

    A model without a head may miss its pooler, which transformers then draws.
    """
    theirs, info = kind.from_pretrained(place, output_loading_info=True, **options)
    if kind.__name__.endswith("Model"):
        info["missing_keys"] = [n for n in info["missing_keys"] if not n.startswith("pooler.")]
    assert not any(info.values()), info
    return theirs
