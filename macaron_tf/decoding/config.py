"""Settings of beam search and of sampling, checked when they are made."""

import dataclasses

from macaron_tf.errors import UserError

LENGTH_PENALTIES = ("gnmt", "fairseq", "none")
STOPPING_RULES = ("complete", "exact")


def _check(condition: bool, field: str, value, need: str) -> None:
    if not condition:
        raise UserError(f"decoding setting {field}={value!r} is not valid: give {need}.")


class LengthLimits:
    """The fields and checks shared by every way of decoding: how long an output may be."""

    max_length_ratio: float
    max_length_offset: int
    max_length: int
    min_length: int

    def _check_lengths(self) -> None:
        _check(self.max_length_ratio >= 0, "max_length_ratio", self.max_length_ratio, "0 or more")
        _check(
            isinstance(self.max_length_offset, int),
            "max_length_offset",
            self.max_length_offset,
            "a whole number",
        )
        _check(
            isinstance(self.max_length, int) and self.max_length >= 1,
            "max_length",
            self.max_length,
            "a whole number of 1 or more",
        )
        _check(
            isinstance(self.min_length, int) and 0 <= self.min_length < self.max_length,
            "min_length",
            self.min_length,
            f"a whole number from 0 to max_length - 1 = {self.max_length - 1}",
        )


@dataclasses.dataclass(frozen=True)
class BeamSearchConfig(LengthLimits):
    """Beam search settings; lengths count tokens and include the final EOS.

    The default penalty and limit (source length + 50) are those of Vaswani et al. 2017.

    Args:
        beam_size: live hypotheses a sentence, K.
        length_penalty: alpha, 0 or more. A hypothesis scores log P / penalty(length).
        length_penalty_name: "gnmt" for ((5 + length) / 6) ** alpha (Wu et al. 2016, eq. 14),
            "fairseq" for length ** alpha, "none" for 1.
        max_length_ratio: a sentence's limit is ratio * source length + `max_length_offset` ...
        max_length_offset: ... tokens,
        max_length: and never more than this.
        min_length: tokens before EOS is allowed (EOS itself not counted).
        n_best: hypotheses returned a sentence, at most `beam_size`.
        stopping: when a sentence is final. "complete": as soon as `beam_size` hypotheses have
            ended (fairseq's rule; beam 1 is greedy search) or none live can change the n best.
            "exact": only the latter, which never stops a search that could still improve.

    Raises:
        UserError: a field is out of range; the sentence names the field.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    length_penalty_name: str = "gnmt"
    max_length_ratio: float = 1.0
    max_length_offset: int = 50
    max_length: int = 256
    min_length: int = 0
    n_best: int = 1
    stopping: str = "complete"

    def __post_init__(self):
        self._check_lengths()
        whole = isinstance(self.beam_size, int) and self.beam_size >= 1
        _check(whole, "beam_size", self.beam_size, "a whole number of 1 or more")
        _check(self.length_penalty >= 0, "length_penalty", self.length_penalty, "0 or more")
        _check(
            self.length_penalty_name in LENGTH_PENALTIES,
            "length_penalty_name",
            self.length_penalty_name,
            f"one of {', '.join(LENGTH_PENALTIES)}",
        )
        _check(
            isinstance(self.n_best, int) and 1 <= self.n_best <= self.beam_size,
            "n_best",
            self.n_best,
            f"a whole number from 1 to beam_size = {self.beam_size}",
        )
        _check(
            self.stopping in STOPPING_RULES,
            "stopping",
            self.stopping,
            f"one of {', '.join(STOPPING_RULES)}",
        )


class DrawSettings:
    """The fields and checks shared by every way of sampling: what a token is drawn from."""

    temperature: float
    top_k: int
    top_p: float
    num_samples: int

    def _check_draws(self) -> None:
        _check(self.temperature >= 0, "temperature", self.temperature, "0 or more")
        whole = isinstance(self.top_k, int) and self.top_k >= 0
        _check(whole, "top_k", self.top_k, "a whole number, 0 for no limit")
        _check(0 < self.top_p <= 1, "top_p", self.top_p, "a probability above 0 and at most 1")
        _check(
            isinstance(self.num_samples, int) and self.num_samples >= 1,
            "num_samples",
            self.num_samples,
            "a whole number of 1 or more",
        )


@dataclasses.dataclass(frozen=True)
class SamplingConfig(LengthLimits, DrawSettings):
    """Sampling settings; the filters apply in the order temperature, top-k, top-p.

    Args:
        temperature: divides the logits; 0 is greedy search.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of most probable tokens whose probability reaches p
            (Holtzman et al. 2020); 1 keeps all.
        num_samples: independent samples a sentence, K.
        max_length_ratio: as in `BeamSearchConfig`, with the three fields after it.
        max_length_offset: see there.
        max_length: see there.
        min_length: see there.

    Raises:
        UserError: a field is out of range; the sentence names the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    num_samples: int = 1
    max_length_ratio: float = 1.0
    max_length_offset: int = 50
    max_length: int = 256
    min_length: int = 0

    def __post_init__(self):
        self._check_lengths()
        self._check_draws()


@dataclasses.dataclass(frozen=True)
class GenerationConfig(DrawSettings):
    """Settings of a language model's continuation of a text.

    Args:
        temperature: as in `SamplingConfig`, with the three fields after it.
        top_k: see there.
        top_p: see there.
        num_samples: see there; sample k draws with the seed + k.
        max_tokens: new tokens at most, the end of the text included.
        min_tokens: new tokens before the text may end.

    Raises:
        UserError: a field is out of range; the sentence names the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    num_samples: int = 1
    max_tokens: int = 128
    min_tokens: int = 0

    def __post_init__(self):
        self._check_draws()
        whole = isinstance(self.max_tokens, int) and self.max_tokens >= 1
        _check(whole, "max_tokens", self.max_tokens, "a whole number of 1 or more")
        _check(
            isinstance(self.min_tokens, int) and 0 <= self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"a whole number from 0 to max_tokens = {self.max_tokens}",
        )
