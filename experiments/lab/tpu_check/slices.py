"""The smallest slice of a TPU that trains each catalog model: bytes by shapes, without memory.

The activations of a row follow Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
Transformer Models", equations 1 and 2: for a Transformer layer of F = 4 D in bfloat16 L D (34 + 5 H
L / D) bytes, of which M cores with a part of the model each share all but 10 L D.
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
    """Bytes that a row's backward pass reads, of bfloat16 products.

    Attributes:
        whole: on every core, however the model is divided.
        divided: over the cores that share a layer.
    """

    whole: float
    divided: float

    @property
    def total(self) -> float:
        return self.whole + self.divided

    def cores(self, parameters: int, memory: int, most: int) -> int | None:
        """The least power of two of cores that hold the model's parts and a row in `memory` each.

        None = `most` are too few.
        """
        cores = 1
        while (parameters * BYTES_A_WEIGHT + self.divided) / cores + self.whole > memory:
            cores *= 2
            if cores > most:
                return None
        return cores


def parameters_of(name: str) -> int:
    """A catalog model's number of parameters, without its weights."""
    with without_values():
        return catalog.build(name).count_params()


def lengths(config: EncoderConfig | EncoderDecoderConfig) -> tuple[int, int]:
    """S and T of a row: of the models' pre-training, and of the translation recipes."""
    if isinstance(config, EncoderConfig):
        return (config.max_length,) * 2
    if config.relative_bias == "shared":
        return 512, 114  # T5's source and target
    longest = 512 if config.positions == "learned" else 256
    return (min(longest, config.max_length),) * 2


def activations(config: EncoderConfig | EncoderDecoderConfig) -> Activations:
    """The activations of a row by the equations; other blocks than the Transformer's likewise."""
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
    """A layer of `block`, over L positions, with attention to S more where there is a memory."""
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
            # Before and behind the activation; twice as much where a gate is multiplied. SwishRNN
            # keeps two inputs, the states and the output, two thirds as wide.
            each = 8 * 2 / 3 if block == "swish_rnn" else 8 if config.gated else 4
            divided += each * length * inner
        elif block in ("gmlp", "amlp"):
            # Before and behind the activation; half as wide: the norm, the gate, their product.
            divided += 7 * length * inner + (5 * length**2 if block == "amlp" else 0)
        else:
            # Queries and the result, 2 bytes each, keys and values; the weights, 2, their dropout's
            # mask, and those that are left, 2.
            keys = length if operator == "tokens" else memory
            divided += 4 * (length + keys) * width + 5 * config.num_heads * length * keys
    return Activations(whole, divided)


def measured() -> dict[str, tuple[int, float]]:
    """By model: the length of a row and its bytes of activations in the compiled recipes.

    The compiler's temporaries less the gradients; it computes anew what does not fit.
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
    """The table of some models, and what its columns mean."""
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
    """The range of the equations' bytes over the compiler's, of base models and rows as long."""
    ratios = []
    for name, (length, each) in known.items():
        config = catalog.CONFIGS[name]
        base = isinstance(config, (EncoderConfig, EncoderDecoderConfig)) and config.hidden_dim > 500
        if base and lengths(config)[0] == length:
            ratios.append(activations(config).total / each)
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _cells(name: str, seen: tuple[int, float] | None) -> tuple[int, list[str]]:
    """A model's number of parameters, by which lines are sorted, and its cells."""
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
