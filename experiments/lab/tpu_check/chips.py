"""The TPU generations that a step can be compiled for, by their names in libtpu."""

import dataclasses
import re

from macaron_tf.errors import UserError, plural


@dataclasses.dataclass(frozen=True)
class Chip:
    """A TPU generation, as libtpu and Google's documentation describe it.

    Attributes:
        cores: number of devices in a chip. The two TensorCores of a v4 chip are two devices; the
            two TensorCores of a v5p chip are one device.
        core_gib: HBM in GiB that libtpu 0.0.51 lets a program use on one core.
        peak_tflops: peak rate of a chip in bfloat16, in TFLOP/s.
        mxus: number of matrix units (MXUs) in a core; each has 128 x 128 cells.
        accelerator: accelerator type of a Cloud TPU with 4 chips, for libtpu.
        example: topology of 4 chips.
        slices: chip counts of the available slices, in ascending powers of two. A larger number of
            chips needs several slices (Multislice), which this package does not support.
    """

    cores: int
    core_gib: float
    peak_tflops: float
    mxus: int
    accelerator: str
    example: str
    slices: tuple[int, ...]

    def slice_name(self, chips: int) -> str:
        """Returns the accelerator type of a slice, such as v4-32 for 16 chips."""
        generation, _, of_4_chips = self.accelerator.rpartition("-")
        return f"{generation}-{chips * int(of_4_chips) // 4}"

    @property
    def core_bytes(self) -> int:
        """Memory in bytes that a program may use on one core."""
        return int(self.core_gib * 2**30)

    @property
    def clock_ghz(self) -> float:
        """Clock in GHz at which one multiply-add per cell and cycle gives the peak rate.

        For v4: 275e12 / (2 cores x 4 MXUs x 128 x 128 cells x 2 operations) = 1.05e9 Hz.
        """
        return self.peak_tflops * 1e3 / (self.cores * self.mxus * 128 * 128 * 2)


_FROM_4 = tuple(4 * 2**power for power in range(11))
CHIPS = {
    "v4": Chip(2, 15.25, 275, 4, "v4-8", "v4:2x2x1", _FROM_4),
    "v5e": Chip(1, 15.75, 197, 4, "v5litepod-4", "v5e:2x2", (1, *_FROM_4[:7])),
    "v5p": Chip(1, 95.73, 459, 8, "v5p-8", "v5p:2x2x1", _FROM_4),
}


def chip_of(topology: str) -> Chip:
    """Returns the chip of a topology such as `v4:2x2x1`.

    Raises:
        UserError: `topology` has another form or names an unknown chip.
    """
    name, _, shape = topology.partition(":")
    if not re.fullmatch(r"\d+(x\d+)*", shape):
        raise UserError(
            f"the topology {topology} is not a TPU topology: write a chip and the number of chips "
            f"along each axis, such as {', '.join(chip.example for chip in CHIPS.values())}"
        )
    if name not in CHIPS:
        raise UserError(
            f"the topology {topology} names the TPU generation {name!r}, which tpu_check does not "
            f"support: name one of {', '.join(CHIPS)}"
        )
    return CHIPS[name]


def listing() -> str:
    """Returns a text with one line for each chip in `CHIPS`."""
    return "\n".join(
        f"{chip.example:10} {chip.cores} {plural('core', chip.cores)} per chip, "
        f"{chip.core_gib:g} GiB and {chip.clock_ghz:.2f} GHz per core"
        for chip in CHIPS.values()
    )
