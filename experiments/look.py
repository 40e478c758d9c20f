"""Draws the attention weights of a model, and how SwishRNN states depend on earlier inputs.

    macaron look RUN "A man rides a horse."
    macaron look RUN "A man rides a horse." "Ein Mann reitet ein Pferd."

RUN is the folder of a training run, or another model location that `macaron_tf.load` reads. The
model is an encoder, a language model or an encoder-decoder. The pictures show the attention weights
of every layer and head, and the mean over layers and heads. For a block with a SwishRNN, a picture
shows how much the state at each position depends on earlier inputs.

An encoder reads two texts as a pair. A translation model takes the second text as the translation
of the first text. Without a second text, the model translates the first text itself. Any other
encoder-decoder and a language model read a single text. The file look.npz in the folder of --out
contains the tokens and the arrays from which the pictures are drawn.
"""

import argparse
import io
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from experiments import command_line as cli
from experiments import studies
from macaron_tf.cli.arguments import MODEL
from macaron_tf.data.tasks.encoding import encode_pairs
from macaron_tf.decoding import GenerationConfig, translate_ids
from macaron_tf.errors import UserError, plural
from macaron_tf.io.paths import as_path, write_atomic
from macaron_tf.kernels import swish_recurrence
from macaron_tf.kernels.recurrence import derivatives
from macaron_tf.layers.swish_rnn import SwishRNN
from macaron_tf.layers.watching import watching
from macaron_tf.model import Model, load
from macaron_tf.models import Encoder, EncoderDecoder, LanguageModel
from macaron_tf.models.tasks import CausalReader
from macaron_tf.tasks.translation import Translation
from macaron_tf.text.base import PieceVocabulary
from macaron_tf.text.source_target import PairVocabulary

_PANEL = 1.3  # width of a head's panel in inches
_READABLE = 60  # maximum number of tokens that a picture labels


def run(options: argparse.Namespace) -> None:
    """Runs the command `look`: runs a model on the texts, and writes pictures and arrays."""
    location = options.run
    pretrained = load(location, trust_code=options.trust_code)
    network = stack = pretrained.network
    if not isinstance(network, EncoderDecoder | Encoder):
        stack = getattr(network, "encoder", None)
    if not isinstance(stack, EncoderDecoder | Encoder):
        name = type(network).__name__
        raise UserError(f"{location} is a {name}, which has no attention or SwishRNN to show")
    pretrained.require_vocabulary()
    is_pair = isinstance(network, EncoderDecoder)
    generates = isinstance(network, LanguageModel) or is_pair
    limit = 1 if generates and not isinstance(pretrained.task, Translation) else 2
    if len(options.texts) > limit:
        raise UserError(f"{location} reads at most {limit} {plural('text', limit)}: quote each")
    encode = _encoder_decoder_inputs if is_pair else _encoder_inputs
    inputs, tokens = encode(pretrained, options.texts)
    with watching() as records:
        stack({name: tf.constant([ids], tf.int32) for name, ids in inputs.items()}, training=False)
    if not records:
        blocks = ", ".join(pretrained.config.blocks)
        raise UserError(f"{location} has only {blocks} blocks, without attention or SwishRNN")
    _write(as_path(options.out), records, tokens)


Inputs = tuple[dict[str, list[int]], dict[str, list[str]]]


def _encoder_inputs(pretrained: Model, texts: Sequence[str]) -> Inputs:
    """Returns the network's inputs for a row of one or two texts, and a dict of its "tokens"."""
    vocabulary = pretrained.vocabulary
    if isinstance(pretrained.network, LanguageModel):
        inputs = {"token_ids": pretrained.task.generator.row(texts[0])}
    else:
        first, second = ([[text] for text in texts] + [None])[:2]
        is_causal = isinstance(pretrained.network, CausalReader)
        rows = encode_pairs(vocabulary, first, second, 2**30, is_causal)
        inputs = {name: ids[0].numpy().tolist() for name, ids in rows.items()}
    _check_length("the text", len(inputs["token_ids"]), pretrained.config.longest)
    return inputs, {"tokens": _token_texts(vocabulary, inputs["token_ids"])}


def _encoder_decoder_inputs(pretrained: Model, texts: Sequence[str]) -> Inputs:
    """Returns the network's inputs for one row of an encoder-decoder, and a dict of tokens."""
    vocabulary, task = pretrained.vocabulary, pretrained.task
    if isinstance(task, Translation):
        begin, end = [vocabulary.special.begin], [vocabulary.special.end]
        source_ids = vocabulary.encode_lines(texts[:1])[0]
        _check_length("the first text", len(source_ids), task.max_tokens)
        source_ids = source_ids + end
        if len(texts) > 1:
            target_ids = vocabulary.encode_lines(texts[1:], vocabulary.languages[1])[0] + end
        else:
            rows = tf.constant([source_ids], tf.int32)
            result = translate_ids(task.decoder, rows, task.decoding, vocabulary.pieces)
            target_ids = result["ids"][0, 0, : int(result["lengths"][0, 0])].numpy().tolist()
        decoder_ids = begin + target_ids
    else:
        source_ids = task.generator.row(texts[0])
        greedy = GenerationConfig(temperature=0.0)
        [[completion]] = task.generator.continue_rows([source_ids], greedy)
        decoder_ids = [*task.generator.answer_start, *completion.ids]
    _check_length("the target text", len(decoder_ids) - 1, pretrained.config.longest)
    source, target = vocabulary, vocabulary
    if isinstance(vocabulary, PairVocabulary):
        source, target = vocabulary.source, vocabulary.target
    tokens = {
        "source_tokens": _token_texts(source, source_ids),
        "read_tokens": _token_texts(target, decoder_ids[:-1]),
        "target_tokens": _token_texts(target, decoder_ids[1:]),
    }
    return {"source": source_ids, "target": decoder_ids[:-1]}, tokens


def _check_length(name: str, length: int, max_length: int | None) -> None:
    if length < 1:
        raise UserError(f"{name} is empty: give another text")
    if max_length is not None and length > max_length:
        raise UserError(f"{name} has {length} tokens: shorten it to {max_length} tokens")


def _token_texts(vocabulary: PieceVocabulary, ids: Iterable[int]) -> list[str]:
    """Returns the text of each token id. A space is ▁, and T5's sentinel number n is `<n>`."""
    return [
        vocabulary.piece_name(token_id).replace(" ", "▁")
        if token_id < vocabulary.pieces
        else f"<{token_id - vocabulary.size}>"
        for token_id in ids
    ]


def _write(out: pathlib.Path, records: list[tuple[Any, Any]], tokens: dict[str, list[str]]) -> None:
    """Writes the pictures and `out`/look.npz, and prints their paths and the target tokens."""
    arrays: dict[str, np.ndarray] = {name: np.array(names) for name, names in tokens.items()}
    columns = tokens.get("tokens") or tokens["source_tokens"]
    labels = {  # dict mapping a picture to the tokens of its rows and the tokens of its columns
        "encoder": (columns, columns),
        "source_encoder": (columns, columns),
        "decoder": (tokens.get("read_tokens", columns),) * 2,
        "cross": (tokens.get("target_tokens"), columns),
    }
    files = []

    def draw(name: str, figure: Figure) -> None:
        files.append(out / f"{name}.png")
        studies.write_figure(figure, files[-1])

    groups: dict[str, list[tuple[Any, Any]]] = {}
    for layer, tensor in records:
        groups.setdefault(_picture_name(layer), []).append((layer, tensor))
    for picture, group in groups.items():
        arrays[f"{picture}_layers"] = np.array([layer.path for layer, _ in group])
        if picture.endswith("memory"):
            arrays[picture] = np.stack([state_derivatives(*record) for record in group])
            curves = {
                f"layer {n}": _by_distance(layer) for n, layer in enumerate(arrays[picture], 1)
            }
            files.append(out / f"{picture}.png")
            axes = "distance t - s", "|dc[t] / dx[s]|"
            studies.mean_curves({picture: curves}, files[-1], *axes, log_y=10)
        else:
            arrays[picture] = _stacked([np.asarray(weights[0], "float32") for _, weights in group])
            draw(picture, heads_figure(arrays[picture]))
            mean = np.nanmean(arrays[picture], axis=(0, 1))
            draw(f"{picture}_mean", tokens_figure(mean, *labels[picture]))
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    files.append(out / "look.npz")
    write_atomic(files[-1], content.getvalue())
    if "target_tokens" in tokens:
        print(" ".join(tokens["target_tokens"]))
    print("\n".join(map(str, files)))


def _picture_name(layer) -> str:
    """Returns the name of the picture for a layer, such as "cross" or "decoder_memory"."""
    parts = layer.path.split("/")
    stack = next((n for n in ("source_encoder", "decoder") if n in parts), "encoder")
    if isinstance(layer, SwishRNN):
        return "memory" if stack == "encoder" else f"{stack}_memory"
    return "cross" if layer.cross else "decoder" if layer.causal else stack


def _stacked(weights: list[np.ndarray]) -> np.ndarray:
    """Stacks the attention weights `(H, T, S)` of N layers, and pads missing heads with NaN."""
    heads = max(map(len, weights))
    paddings = [((0, heads - len(each)), (0, 0), (0, 0)) for each in weights]
    pairs = zip(weights, paddings, strict=True)
    return np.stack([np.pad(each, padding, constant_values=np.nan) for each, padding in pairs])


def state_derivatives(layer: SwishRNN, inputs) -> np.ndarray:
    """Computes how strongly SwishRNN states depend on inputs, as a float64 array `(T, T)`.

    The element [t, s] is the root mean square over channels of the derivative dc[t] / dx[s] of the
    state c at position t with respect to the input x at position s. The recurrence does not mix
    channels. In each channel, the derivative is (1 - J[s]) J[s+k] ... J[t], where k is the step
    size; see `macaron_tf.kernels.recurrence` for J. If a state always equals its input, the
    derivative dc[t] / dx[t] is 1. The derivative is 0 if s > t, or if t - s is not a multiple of k.

    Args:
        inputs: `(1, T, 2 R)`, the inputs of the recurrence and of the gate, with R channels each.
    """
    step, width = layer.step_size, layer.inner_dim
    x = tf.cast(inputs[:, :, :width], tf.float32)
    alpha, beta = (tf.convert_to_tensor(vector) for vector in (layer.alpha, layer.beta))
    c = swish_recurrence(x, alpha, beta, step, implementation="stock")
    previous = tf.concat([tf.zeros((1, step, width)), c], axis=1)[:, : x.shape[1]]
    jacobian = np.asarray(derivatives(previous - x, None, alpha, beta)[0][0], "float64")  # J (T, R)
    length = len(jacobian)
    products, norms = np.zeros((length, width)), np.zeros((length, length))
    for t in range(length):
        chain = slice(t % step, t, step)
        products[chain] *= jacobian[t]
        products[t] = 1.0 - jacobian[t]
        chain = slice(t % step, t + 1, step)
        norms[t, chain] = np.sqrt(np.mean(np.square(products[chain]), axis=1))
    return norms


def heads_figure(weights: np.ndarray) -> Figure:
    """Draws attention weights `(N, H, T, S)` of N layers with H heads as a grid of panels.

    The last column has the mean over heads. In a panel, rows are queries, columns are keys, and the
    darkest colour is the largest weight. NaN marks the missing heads of a layer.
    """
    layers, heads, *shape = weights.shape
    size = (_PANEL * (heads + 1) + 0.5, _PANEL * layers * min(3.0, shape[0] / shape[1]) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(layers, heads + 1, squeeze=False)
    for layer, row in enumerate(axes):
        panels = [*weights[layer], np.nanmean(weights[layer], axis=0)]
        for head, (axis, panel) in enumerate(zip(row, panels, strict=True)):
            axis.set(xticks=[], yticks=[])
            if np.isnan(panel).any():
                axis.set_axis_off()
                continue
            axis.imshow(panel, cmap="Blues", vmin=0.0, aspect="auto")
            if layer == 0:
                axis.set_title(f"head {head + 1}" if head < heads else "mean", fontsize=8)
        row[0].set_ylabel(f"layer {layer + 1}", fontsize=8)
    return figure


def tokens_figure(weights: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> Figure:
    """Draws attention weights `(T, S)`, with queries as rows and keys as columns.

    An axis has tokens as labels or, with more than 60 tokens, indices.
    """
    size = [2.0 + min(0.24 * len(tokens), 12.0) for tokens in (columns, rows)]
    figure = Figure(figsize=size, layout="constrained")
    axis = figure.subplots()
    figure.colorbar(axis.imshow(weights, cmap="Blues", vmin=0.0), shrink=0.6)
    for tokens, set_ticks in ((columns, axis.set_xticks), (rows, axis.set_yticks)):
        if len(tokens) <= _READABLE:
            labels = [name.strip("▁") or name for name in tokens]
            # `parse_math=False` shows $ as plain text.
            set_ticks(range(len(tokens)), labels, fontsize=8, parse_math=False)
    axis.tick_params("x", rotation=90, top=True, labeltop=True, bottom=False, labelbottom=False)
    return figure


def _by_distance(norms: np.ndarray) -> dict[int, list[float]]:
    """Maps the distance t - s to the mean of `norms (T, T)`, without means below 0.001."""
    means = {distance: np.diagonal(norms, -distance).mean() for distance in range(len(norms))}
    return {distance: [mean] for distance, mean in means.items() if mean >= 1e-3}


main = cli.single_program(
    "macaron look",
    __doc__,
    "experiments.look:run",
    MODEL,
    cli.argument("texts TEXT", "one or two texts that the model reads, see above", nargs="+"),
    cli.path_argument("--out DIR", "output folder (default: %(default)s)", default="look"),
)
