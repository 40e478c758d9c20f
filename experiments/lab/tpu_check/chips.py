"""The TPUs that a step can be compiled for, by their names in libtpu's topologies."""

import dataclasses
import re

from macaron_tf.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chip:
    """A generation of TPUs, as described by libtpu and by Google's documentation.

    Attributes:
        cores: devices of a chip, each of which is a replica. The two TensorCores of a v4 are two
            devices; those of a v5p are one.
        core_gib: HBM in GiB that libtpu 0.0.51 gives a program on one core.
        peak_tflops: peak rate of a chip in bfloat16, in TFLOP/s.
        mxus: matrix units of a core, each of 128 x 128 cells.
        accelerator: name of a Cloud TPU of 4 chips, which libtpu requires.
        example: a topology of 4 chips.
        slices: numbers of chips, powers of two, of the slices that Google rents. More chips than
            the last are several slices (Multislice), which is not supported here.
    """

    cores: int
    core_gib: float
    peak_tflops: float
    mxus: int
    accelerator: str
    example: str
    slices: tuple[int, ...]

    def slice_name(self, chips: int) -> str:
        """The accelerator type of a slice, such as v4-32 of 16 chips."""
        kind, _, of_four = self.accelerator.rpartition("-")
        return f"{kind}-{chips * int(of_four) // 4}"

    @property
    def core_bytes(self) -> int:
        """The memory of a core in bytes."""
        return int(self.core_gib * 2**30)

    @property
    def clock_ghz(self) -> float:
        """The clock at which one multiply-add per cell and cycle gives the peak rate.

        v4: 275e12 / (2 cores x 4 units x 128 x 128 cells x 2) = 1.05e9; v5e: 1.50e9.
        """
        return self.peak_tflops * 1e3 / (self.cores * self.mxus * 128 * 128 * 2)


_FROM_4 = tuple(4 * 2**power for power in range(11))
CHIPS = {
    "v4": Chip(2, 15.25, 275, 4, "v4-8", "v4:2x2x1", _FROM_4),
    "v5e": Chip(1, 15.75, 197, 4, "v5litepod-4", "v5e:2x2", (1, *_FROM_4[:7])),
    "v5p": Chip(1, 95.73, 459, 8, "v5p-8", "v5p:2x2x1", _FROM_4),
}


def chip_of(topology: str) -> Chip:
    """The chip of a topology such as `v4:2x2x1`."""
    name, _, shape = topology.partition(":")
    if name not in CHIPS or not re.fullmatch(r"\d+(x\d+)*", shape):
        raise UserError(
            f"--topology {topology}: write a chip and how many in each direction, such as "
            f"{', '.join(chip.example for chip in CHIPS.values())}"
        )
    return CHIPS[name]


def listing() -> str:
    """One line for each chip. libtpu can check a topology, but not list the valid ones."""
    return "\n".join(
        f"{chip.example:10} {chip.cores} core{'s' if chip.cores > 1 else ''} a chip, "
        f"{chip.core_gib:g} GiB and {chip.clock_ghz:.2f} GHz a core"
        for chip in CHIPS.values()
    )
