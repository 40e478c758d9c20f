"""The settings of beam search and of sampling."""

import dataclasses
from typing import Annotated, ClassVar, Literal

from annotated_types import Gt, Le

from macaron_tf.settings import Count, Natural, NonNegative, Settings


@dataclasses.dataclass(frozen=True)
class LengthLimits(Settings):
    """The length of an output, in tokens with the final EOS.

    A sentence's limit is min(max_length, ceil(max_length_ratio * source length) +
    max_length_offset); the default is that of Vaswani et al. 2017, source length + 50.

    Attributes:
        max_length_ratio: factor of the source length in the limit.
        max_length_offset: added to it.
        max_length: greatest limit of all.
        min_length: tokens before EOS is allowed (EOS itself not counted).
    """

    section: ClassVar[str] = "decoding"

    max_length_ratio: NonNegative = 1.0
    max_length_offset: int = 50
    max_length: Count = 256
    min_length: Natural = 0

    def check(self) -> None:
        if self.min_length >= self.max_length:
            raise self.error(
                f"min_length={self.min_length} must be below max_length={self.max_length}"
            )


@dataclasses.dataclass(frozen=True)
class BeamSearchConfig(LengthLimits):
    """Settings of beam search; the default length penalty is that of Vaswani et al. 2017.

    Attributes:
        beam_size: live hypotheses a sentence, K.
        length_penalty: alpha. A hypothesis scores log P / penalty(length).
        length_penalty_name: "gnmt" for ((5 + length) / 6) ** alpha (Wu et al. 2016, eq. 14),
            "fairseq" for length ** alpha, "none" for 1.
        n_best: hypotheses returned a sentence, at most `beam_size`.
        stopping: when a sentence is final. "complete": as soon as `beam_size` hypotheses have
            ended (fairseq's rule; beam 1 is greedy search) or no live one can enter the n best.
            "exact": only the latter, which never stops a search that could still improve.
    """

    beam_size: Count = 4
    length_penalty: NonNegative = 0.6
    length_penalty_name: Literal["gnmt", "fairseq", "none"] = "gnmt"
    n_best: Count = 1
    stopping: Literal["complete", "exact"] = "complete"

    def check(self) -> None:
        super().check()
        if self.n_best > self.beam_size:
            raise self.error(f"n_best={self.n_best} must be at most beam_size={self.beam_size}")


@dataclasses.dataclass(frozen=True)
class DrawSettings(Settings):
    """Settings of a draw; the filters apply in the order temperature, top-k, top-p.

    Attributes:
        temperature: divides the logits; 0 is greedy search.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose probability reaches p
            (Holtzman et al. 2020); 1 keeps all.
        num_samples: independent samples of each input, K.
    """

    section: ClassVar[str] = "decoding"

    temperature: NonNegative = 1.0
    top_k: Natural = 0
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    num_samples: Count = 1


@dataclasses.dataclass(frozen=True)
class SamplingConfig(LengthLimits, DrawSettings):
    """Settings of sampling from an encoder-decoder."""


@dataclasses.dataclass(frozen=True)
class GenerationConfig(DrawSettings):
    """Settings of a language model's continuation; sample k draws with the seed + k.

    Attributes:
        max_tokens: greatest number of new tokens, the end of the text included.
        min_tokens: new tokens before the text may end.
    """

    max_tokens: Count = 128
    min_tokens: Natural = 0

    def check(self) -> None:
        if self.min_tokens > self.max_tokens:
            raise self.error(
                f"min_tokens={self.min_tokens} must be at most max_tokens={self.max_tokens}"
            )
