"""Joey NMT's side of the training benchmark: its text, its configuration, its count of batches.

Joey NMT 2.3.0, Kreutzer et al. 2019, "Joey NMT: A Minimalist NMT Toolkit for Novices". Nothing of
it is imported here: it runs as its own command, in an environment of its own.
"""

import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from experiments.translate.recipe import TranslationRecipe
from macaron_tf.errors import UserError
from macaron_tf.io.paths import write_aside
from macaron_tf.special_ids import EOS
from macaron_tf.text import SentencePieceVocabulary


def write_pieces(
    path: pathlib.Path, rows: Iterable[Sequence[int]], vocabulary: SentencePieceVocabulary
) -> None:
    """Writes lines of pieces with blanks between them, as Joey NMT's level "word" splits them.

    Args:
        path: the file.
        rows: the ids of each line; an EOS at the end is left out.
        vocabulary: whose pieces they are.
    """
    names = [vocabulary.processor.id_to_piece(i) for i in range(vocabulary.pieces)]
    lines = (" ".join(names[i] for i in row if i != EOS) for row in rows)
    write_aside(path, "".join(line + "\n" for line in lines).encode())


def write_vocabulary(path: pathlib.Path, vocabulary: SentencePieceVocabulary) -> None:
    """Writes as many rows as our embedding has, without the special four, which Joey NMT adds."""
    names = [vocabulary.processor.id_to_piece(i) for i in range(EOS + 1, vocabulary.pieces)]
    names += [f"<padding{i}>" for i in range(vocabulary.pieces, vocabulary.size)]
    write_aside(path, "".join(name + "\n" for name in names).encode())


def read_pieces(path: pathlib.Path, vocabulary: SentencePieceVocabulary) -> list[str]:
    """The lines of text that a file of pieces says."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [vocabulary.processor.decode_pieces(line.split(" ")) for line in lines]


def config(
    recipe: TranslationRecipe,
    folder: pathlib.Path,
    tokens: int,
    log_every: int,
    validate_every: int,
) -> dict:
    """The configuration of the model and the optimizer that a recipe describes.

    Args:
        recipe: ours.
        folder: with `train.LANGUAGE`, `validation.LANGUAGE` and `vocabulary.txt`; Joey NMT makes
            its `run` there.
        tokens: rows times padded length of a batch, on the longer side.
        log_every, validate_every: in updates, the latter a multiple of the former.

    Raises:
        UserError: Joey NMT has no such model or schedule.
    """
    model, training = recipe.model_config(), recipe.training
    dropouts = {model.dropout, model.attention_dropout, model.activation_dropout}
    if len(dropouts) > 1 or model.block != "transformer" or training.schedule != "inverse_sqrt":
        raise UserError(
            "Joey NMT has no equal model: give a Transformer, one dropout for all its places and "
            "training.schedule=inverse_sqrt"
        )
    stack = {
        "type": "transformer",
        "hidden_size": model.hidden_dim,
        "ff_size": model.feed_forward_dim,
        "num_heads": model.num_heads,
        "dropout": model.dropout,
        "activation": model.activation,
        "layer_norm": model.norm,
        "embeddings": {
            "embedding_dim": model.hidden_dim, "scale": True, "dropout": model.dropout,
        },
    }  # fmt: skip

    def side(language: str) -> dict:
        return {"lang": language, "level": "word", "voc_file": str(folder / "vocabulary.txt")}

    return {
        "name": recipe.model,
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder / "run"),
        "use_cuda": False,
        "random_seed": training.seed,
        "data": {
            "train": str(folder / "train"),
            "dev": str(folder / "validation"),
            "dataset_type": "plain",
            "src": side(recipe.data.source_language),
            "trg": side(recipe.data.target_language),
        },
        # Greedy for at most half as many pieces again as the source has, its default.
        "testing": {"batch_size": 64, "batch_type": "sentence", "eval_metrics": []},
        "training": {
            "batch_size": tokens,
            "batch_type": "token",
            "normalization": "tokens",
            "label_smoothing": recipe.label_smoothing,
            "optimizer": "adam",
            "adam_betas": [training.beta_1, training.beta_2],
            "learning_rate": training.learning_rate,
            # Below it Joey NMT stops, and the warm-up starts there.
            "learning_rate_min": 0.0,
            "learning_rate_warmup": training.warmup_steps,
            "scheduling": "warmupinversesquareroot",
            "epochs": 1_000_000,
            "updates": training.max_steps,
            "logging_freq": log_every,
            "validation_freq": validate_every,
            "early_stopping_metric": "loss",
            "keep_best_ckpts": 1,
            "print_valid_sents": [],
        },
        "model": {
            # DeepNet's factors come with "xavier_normal" only.
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": {**stack, "num_layers": model.num_encoder_layers},
            "decoder": {**stack, "num_layers": model.num_decoder_layers},
        },
    }


def updates_per_epoch(lengths: np.ndarray, tokens: int, seed: int, epochs: int = 5) -> float:
    """How many batches its sampler makes of an epoch.

    It takes rows in random order, whatever their lengths, until rows times the longest of them
    reach `tokens`: so a batch of 4,096 tokens of short sentences is half padding.

    Args:
        lengths: (rows,) the longer side of each pair, EOS included.
        tokens: of a batch.
        seed: of the shuffling.
        epochs: to take the mean of; they differ by a percent.
    """
    rng = np.random.default_rng(seed)
    batches = 0
    for _ in range(epochs):
        rows = longest = 0
        for length in rng.permutation(lengths).tolist():
            rows, longest = rows + 1, max(longest, length)
            if rows * longest >= tokens:
                batches, rows, longest = batches + 1, 0, 0
        batches += rows > 0
    return batches / epochs


def logged_update(line: str) -> int | None:
    """The number of updates that a line of its log tells of; None = it tells of none."""
    _, found, rest = line.partition("Step:")
    number = rest.partition(",")[0].strip()
    return int(number) if found and "Batch Loss" in rest and number.isdecimal() else None
