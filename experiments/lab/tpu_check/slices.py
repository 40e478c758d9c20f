"""Finds the smallest TPU slice that trains each catalog model, from shapes alone.

The activations of a row follow Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", equations 1 and 2. A Transformer layer with F = 4 D in bfloat16 takes
L D (34 + 5 H L / D) bytes. If M cores share the model, each holds 10 L D bytes and 1 / M of the
others.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from experiments import registry, studies
from experiments.lab.tpu_check.chips import CHIPS, Chip
from macaron_tf.distribution.device_memory import without_values
from macaron_tf.io.paths import read_json, write_aside
from macaron_tf.layers.blocks import block_class
from macaron_tf.models import EncoderConfig, EncoderDecoderConfig, catalog

# A weight, its gradient and Adam's two moments, float32 each.
BYTES_A_WEIGHT = 16
RESULTS = pathlib.Path(__file__).parents[2] / "results"
_CHIPS = ("v4", "v5e")
_COLUMNS = (
    "model", "parameters", "GiB: weights, gradients, moments", "row", "MiB of activations a row",
    *(f"{chip}: {how}" for chip in _CHIPS for how in ("data parallel", "model parallel")),
)  # fmt: skip


class Activations(NamedTuple):
    """Bytes of activations that a row's backward pass needs, with products in bfloat16.

    Attributes:
        whole: bytes that every core holds, however the model is divided.
        divided: bytes that are divided among the cores that share a layer.
    """

    whole: float
    divided: float

    @property
    def total(self) -> float:
        return self.whole + self.divided

    def cores(self, parameters: int, memory: int, most: int) -> int | None:
        """The least number of cores, a power of two, that can share the model and one row.

        Returns:
            None if even `most` cores with `memory` bytes each are too few.
        """
        cores = 1
        while (parameters * BYTES_A_WEIGHT + self.divided) / cores + self.whole > memory:
            cores *= 2
            if cores > most:
                return None
        return cores


def parameters_of(name: str) -> int:
    """A catalog model's number of parameters, counted without allocating its weights."""
    with without_values():
        return catalog.build(name).count_params()


def lengths(config: EncoderConfig | EncoderDecoderConfig) -> tuple[int, int]:
    """Source and target length S, T of a row in pre-training, or in the translation recipes."""
    if isinstance(config, EncoderConfig):
        return (config.max_length,) * 2
    if config.relative_bias == "shared":
        return 512, 114  # T5's source and target
    longest = 512 if config.positions == "learned" else 256
    return (min(longest, config.max_length),) * 2


def activations(config: EncoderConfig | EncoderDecoderConfig) -> Activations:
    """The activations of a row by the equations, applied to other blocks in the same way."""
    source, target = lengths(config)
    if isinstance(config, EncoderConfig):
        stacks = [(config.num_layers, source, False)]
        scored = target if config.causal else 0.15 * target
    else:
        encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
        stacks = [(encoder, source, False), (decoder, target, True)]
        scored = target
    whole = sum(3 * length * config.hidden_dim for _, length, _ in stacks)  # embeddings
    divided = scored * config.vocab_size * 6  # logits in bfloat16, their softmax in float32
    for layers, length, decodes in stacks:
        for number in range(layers):
            more = _layer(config, config.layer(number)[0], length, source if decodes else None)
            whole, divided = whole + more.whole, divided + more.divided
    return Activations(whole, divided)


def _layer(config, block: str, length: int, memory: int | None) -> Activations:
    """The activations of a layer.

    Args:
        length: L, the number of positions.
        memory: S, the length of an encoder's output that the layer attends to; None: there is none.
    """
    width = config.num_heads * (config.head_dim or config.hidden_dim // config.num_heads)
    operators = [(mix.operator, mix.width) for mix in config.splitting(block_class(block).scheme)]
    if memory is not None and "memory" not in dict(operators):
        operators += [("memory", 1.0)] * [name for name, _ in operators].count("tokens")
    whole = divided = 0.0
    for operator, share in operators:
        if operator == "memory" and memory is None:
            continue
        # The inputs of the norm and of the operator, 2 bytes each, and the dropout's mask.
        whole += 5 * length * config.hidden_dim
        inner = config.feed_forward_dim * share
        if operator == "channels":
            # Before and after the activation; twice as much with a gate. SwishRNN keeps two inputs,
            # the states and the output, each two thirds as wide.
            each = 8 * 2 / 3 if block == "swish_rnn" else 8 if config.gated else 4
            divided += each * length * inner
        elif block in ("gmlp", "amlp"):
            # Before and after the activation; and half as wide the norm, the gate, their product.
            divided += 7 * length * inner + (5 * length**2 if block == "amlp" else 0)
        else:
            # 2 bytes each: queries, result, keys, values. For attention weights 2 bytes, 1 for the
            # dropout's mask, and 2 for the weights after dropout.
            keys = length if operator == "tokens" else memory
            divided += 4 * (length + keys) * width + 5 * config.num_heads * length * keys
    return Activations(whole, divided)


def measured() -> dict[str, tuple[int, float]]:
    """Row length and bytes of activations of a row in the compiled recipes, by model.

    The bytes are the compiler's temporaries minus the gradients. Where memory is short, the
    compiler recomputes activations instead of keeping them.
    """
    found = {}
    for file in ("tpu_check.json", "tpu_check_slides.json"):
        for row in read_json(RESULTS / file, rows=list)["rows"]:
            if row["ok"]:
                model = registry.load(row["recipe"]).model
                each = (row["memory"]["temporaries"] - 4 * row["parameters"]) / row["rows"]
                found.setdefault(model, (row["length"], max(each, 0.0)))
    return found


def run(markdown: str | None) -> None:
    """Prints the table of all models, or writes it to a file."""
    text = as_markdown(catalog.names())
    if markdown:
        write_aside(markdown, text.encode())
    else:
        print(text, end="")


def as_markdown(names: Sequence[str]) -> str:
    """The Markdown table of `names`, and what its columns mean."""
    known = measured()
    lines = sorted((_cells(name, known.get(name)) for name in names), key=lambda each: each[0])
    table = "\n".join(studies.table(_COLUMNS, [cells for _, cells in lines]))
    return f"""# Which catalog model trains on which slice of a TPU

`python -m experiments.lab.tpu_check --slices --markdown experiments/results/tpu_check_slices.md`

By shapes, nothing was run. Weights, gradients and Adam's two moments are float32, {BYTES_A_WEIGHT}
bytes a weight; heads of pre-training are left out. Activations are those of one row in bfloat16,
without recomputation: * = as the compiler says of the recipe that trains the model, its temporaries
less the gradients, which it keeps small where memory is short ([table](tpu_check.md), [tiny
ones](tpu_check_slides.md)); else by equations 1 and 2 of Korthikanti et al. 2022, of SwishRNN, gMLP
and encoder-decoders by the same count. They are {_agreement(known)} of the compiler's. - = not
known, and not counted.

Data parallel: the smallest slice whose cores each hold all of it and a row; - = none. Model
parallel: the smallest in which M cores share the weights and the activations within a layer, and
M; all else is data parallel. A core of v4 has {CHIPS["v4"].core_gib} GiB, of v5e
{CHIPS["v5e"].core_gib}. Training with a model shared by cores is the JAX engine's.

{table}
"""


def _agreement(known: dict[str, tuple[int, float]]) -> str:
    """The range of the equations' bytes over the compiler's, for base models at equal lengths."""
    ratios = []
    for name, (length, each) in known.items():
        config = catalog.CONFIGS[name]
        base = isinstance(config, (EncoderConfig, EncoderDecoderConfig)) and config.hidden_dim > 500
        if base and lengths(config)[0] == length:
            ratios.append(activations(config).total / each)
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _cells(name: str, seen: tuple[int, float] | None) -> tuple[int, list[str]]:
    """A model's number of parameters, by which lines are sorted, and the cells of its line."""
    config, parameters = catalog.CONFIGS[name], parameters_of(name)
    by_formula = isinstance(config, (EncoderConfig, EncoderDecoderConfig))
    row, length = Activations(0.0, 0.0), "-"  # neither compiled nor in the equations
    if by_formula:
        row = activations(config)
        source, target = lengths(config)
        length = f"{source} + {target}" if isinstance(config, EncoderDecoderConfig) else f"{source}"
    if seen and (not by_formula or seen[0] == source):
        share = row.whole / row.total if by_formula else 1.0
        row = Activations(seen[1] * share, seen[1] * (1 - share))
        length = length if by_formula else f"{seen[0]}"
    else:
        seen = None
    cells = [name, f"{parameters:,}", f"{parameters * BYTES_A_WEIGHT / 2**30:,.2f}", length]
    cells.append("-" if length == "-" else f"{row.total / 2**20:,.1f}{'*' if seen else ''}")
    for chip in _CHIPS:
        cells += _slices(CHIPS[chip], row, parameters)
    return parameters, cells


def _slices(chip: Chip, row: Activations, parameters: int) -> list[str]:
    most = chip.slices[-1] * chip.cores
    cores = row.cores(parameters, chip.core_bytes, most)
    if cores is None:
        return ["-", f"- (more than {most} cores)"]
    slice_ = chip.slice_name(next(size for size in chip.slices if size * chip.cores >= cores))
    return [slice_ if cores == 1 else "-", f"{slice_}, M = {cores}"]
