"""Finds the smallest TPU slice that can train each catalog model, without a compiler.

If `tpu_check` has compiled a model with the same row length, the activation bytes per row come from
its saved results. Otherwise, they follow Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models", equations 1 and 2. For a row of length L in bfloat16, a
Transformer layer needs L D (34 + 5 H L / D) bytes, where D is the width, H the number of heads and
4 D the feed-forward width. If M cores share the layer, each core holds 10 L D of these bytes and
1 / M of the rest.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from experiments import registry, studies
from experiments.lab.tpu_check.chips import CHIPS, Chip
from macaron_tf.distribution.device_memory import without_values
from macaron_tf.io.paths import read_json, write_atomic
from macaron_tf.layers.blocks import block_class
from macaron_tf.models import EncoderConfig, EncoderDecoderConfig, catalog

# For a weight, its gradient and Adam's two moments, each in float32.
BYTES_A_WEIGHT = 16
RESULTS = pathlib.Path(__file__).parents[2] / "results"
_CHIPS = ("v4", "v5e")
_COLUMNS = (
    "model", "parameters", "GiB: weights, gradients, moments", "row length",
    "activation MiB per row",
    *(f"{chip}: {how}" for chip in _CHIPS for how in ("data parallel", "model parallel")),
)  # fmt: skip


class Activations(NamedTuple):
    """Activation bytes that the backward pass of a row needs, with matrix products in bfloat16.

    Attributes:
        whole: bytes that each core holds in full, even if several cores share a layer.
        divided: bytes that are split among the cores that share a layer.
    """

    whole: float
    divided: float

    @property
    def total(self) -> float:
        return self.whole + self.divided

    def cores(self, parameters: int, core_bytes: int, max_cores: int) -> int | None:
        """Returns the smallest number of cores, a power of 2, that can train the model on one row.

        If more than `max_cores` cores are needed, the result is `None`.

        Args:
            parameters: number of parameters of the model.
            core_bytes: memory of a core in bytes.
            max_cores: maximum number of cores.
        """
        cores = 1
        while (parameters * BYTES_A_WEIGHT + self.divided) / cores + self.whole > core_bytes:
            cores *= 2
            if cores > max_cores:
                return None
        return cores


def parameters_of(name: str) -> int:
    """Returns the parameter count of a catalog model without allocating its weights."""
    with without_values():
        return catalog.build(name).count_params()


def lengths(config: EncoderConfig | EncoderDecoderConfig) -> tuple[int, int]:
    """Returns the source and target length of a row that `activations` assumes for training.

    An encoder has one length, its `max_length`, which the function returns twice.
    """
    if isinstance(config, EncoderConfig):
        return (config.max_length,) * 2
    if config.relative_bias == "shared":
        return 512, 114  # T5's source and target
    max_length = 512 if config.positions == "learned" else 256
    return (min(max_length, config.max_length),) * 2


def activations(config: EncoderConfig | EncoderDecoderConfig) -> Activations:
    """Returns the activation bytes per row of a model.

    The equations in the docstring of this module hold for Transformer blocks. This function also
    supports other blocks.
    """
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
        for index in range(layers):
            layer = _layer(config, config.layer(index)[0], length, source if decodes else None)
            whole, divided = whole + layer.whole, divided + layer.divided
    return Activations(whole, divided)


def _layer(config, block: str, length: int, memory_length: int | None) -> Activations:
    """Returns the activation bytes of a layer for one row.

    Args:
        config: configuration of the model.
        block: name of the layer's block.
        length: number of positions in the row.
        memory_length: length of the encoder output that the layer attends to; `None` means no
            cross-attention.
    """
    width = config.num_heads * (config.head_dim or config.hidden_dim // config.num_heads)
    operators = [(mix.operator, mix.width) for mix in config.splitting(block_class(block).scheme)]
    if memory_length is not None and "memory" not in dict(operators):
        operators += [("memory", 1.0)] * [name for name, _ in operators].count("tokens")
    whole = divided = 0.0
    for operator, width_factor in operators:
        if operator == "memory" and memory_length is None:
            continue
        # Inputs of the norm and of the operator, 2 bytes each, and the dropout mask, 1 byte.
        whole += 5 * length * config.hidden_dim
        inner_dim = config.feed_forward_dim * width_factor
        if operator == "channels":
            # Values before and after the activation function; a gate doubles them. A SwishRNN keeps
            # two inputs, the states and the output, each with 2/3 of the width.
            bytes_per_value = 8 * 2 / 3 if block == "swish_rnn" else 8 if config.gated else 4
            divided += bytes_per_value * length * inner_dim
        elif block in ("gmlp", "amlp"):
            # Values before and after the activation function, and with half of the width the norm,
            # the gate and their product.
            divided += 7 * length * inner_dim + (5 * length**2 if block == "amlp" else 0)
        else:
            # Queries, outputs, keys and values, 2 bytes each. Attention weights before and after
            # dropout, 2 bytes each, and the dropout mask, 1 byte.
            keys = length if operator == "tokens" else memory_length
            divided += 4 * (length + keys) * width + 5 * config.num_heads * length * keys
    return Activations(whole, divided)


def measured() -> dict[str, tuple[int, float]]:
    """Returns the measured activation bytes of the models that passed a saved `tpu_check`.

    The activation bytes are the compiler's temporaries minus the gradients. If memory is scarce,
    the compiler recomputes activations instead of keeping them. Of several results for a model, the
    function returns the first.

    Returns:
        A dict mapping the name of a model to a pair of row length and activation bytes per row.
    """
    measurements = {}
    for file in ("tpu_check.json", "tpu_check_slides.json"):
        for row in read_json(RESULTS / file, rows=list)["rows"]:
            if row["ok"]:
                model = registry.load(row["recipe"]).model
                bytes_per_row = (row["memory"]["temporaries"] - 4 * row["parameters"]) / row["rows"]
                measurements.setdefault(model, (row["length"], max(bytes_per_row, 0.0)))
    return measurements


def run(markdown: str | None) -> None:
    """Prints the table of all models, or writes the table to the file `markdown`."""
    text = as_markdown(catalog.names())
    if markdown:
        write_atomic(markdown, text.encode())
    else:
        print(text, end="")


def as_markdown(names: Sequence[str]) -> str:
    """Returns a Markdown page with a table of the models `names`, sorted by parameter count."""
    measurements = measured()
    agreement = _agreement(measurements)
    lines = sorted(
        (_cells(name, measurements.get(name)) for name in names), key=lambda line: line[0]
    )
    table = "\n".join(studies.table(_COLUMNS, [cells for _, cells in lines]))
    return f"""# Which catalog model trains on which slice of a TPU

`python -m experiments.lab.tpu_check --slices --markdown experiments/results/tpu_check_slices.md`

The table is computed from shapes; nothing ran on a TPU. Weights, gradients and Adam's two moments
take {BYTES_A_WEIGHT} bytes per weight in float32. Pre-training heads are not included. Activations
are for one row in bfloat16, without recomputation.

Activations with a * are measured: they are the compiler's temporaries minus the gradients, for the
recipe that trains the model ([table](tpu_check.md), [tiny models](tpu_check_slides.md)). If memory
is scarce, the compiler recomputes activations, which makes the measured number smaller. All other
activations follow equations 1 and 2 of Korthikanti et al. 2022, extended to SwishRNN, gMLP and
encoder-decoders. For base models, the equations give {agreement} times the measured bytes.
A - means that the activations are unknown and not counted.

Data parallel: the smallest slice in which each core holds all weights and one row; a - means that
no slice is large enough. Model parallel: the smallest slice in which M cores share the weights and
the activations within a layer, and the number M. Only the JAX engine trains with weights that cores
share. A v4 core has {CHIPS["v4"].core_gib} GiB, and a v5e core has {CHIPS["v5e"].core_gib} GiB.

{table}
"""


def _agreement(measurements: dict[str, tuple[int, float]]) -> str:
    """Formats the minimum and maximum ratio of computed to measured activation bytes.

    Only encoders and encoder-decoders with a width above 500 are included. Models whose measured
    row length differs from the computed row length are excluded.

    Args:
        measurements: output of `measured`.
    """
    ratios = []
    for name, (length, measured_bytes) in measurements.items():
        config = catalog.CONFIGS[name]
        base = isinstance(config, (EncoderConfig, EncoderDecoderConfig)) and config.hidden_dim > 500
        if base and lengths(config)[0] == length:
            ratios.append(activations(config).total / measured_bytes)
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _cells(name: str, measurement: tuple[int, float] | None) -> tuple[int, list[str]]:
    """Returns the parameter count of a model, as sort key, and the cells of the model's table row.

    Args:
        name: name of the model.
        measurement: measured row length and activation bytes; `None` means that the model was not
            measured. If the equations cover the model, a measurement at another row length than
            theirs is ignored.
    """
    config, parameters = catalog.CONFIGS[name], parameters_of(name)
    by_formula = isinstance(config, (EncoderConfig, EncoderDecoderConfig))
    row, length = Activations(0.0, 0.0), "-"  # neither compiled nor in the equations
    if by_formula:
        row = activations(config)
        source, target = lengths(config)
        length = f"{source} + {target}" if isinstance(config, EncoderDecoderConfig) else f"{source}"
    if measurement and (not by_formula or measurement[0] == source):
        share = row.whole / row.total if by_formula else 1.0
        row = Activations(measurement[1] * share, measurement[1] * (1 - share))
        length = length if by_formula else f"{measurement[0]}"
    else:
        measurement = None
    cells = [name, f"{parameters:,}", f"{parameters * BYTES_A_WEIGHT / 2**30:,.2f}", length]
    cells.append("-" if length == "-" else f"{row.total / 2**20:,.1f}{'*' if measurement else ''}")
    for chip in _CHIPS:
        cells += _slices(CHIPS[chip], row, parameters)
    return parameters, cells


def _slices(chip: Chip, row: Activations, parameters: int) -> list[str]:
    max_cores = chip.slices[-1] * chip.cores
    cores = row.cores(parameters, chip.core_bytes, max_cores)
    if cores is None:
        return ["-", f"- (more than {max_cores} cores)"]
    slice_ = chip.slice_name(next(size for size in chip.slices if size * chip.cores >= cores))
    return [slice_ if cores == 1 else "-", f"{slice_}, M = {cores}"]
