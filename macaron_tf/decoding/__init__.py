"""Decoding: from a model's scores to its outputs.

Searches take a step function, not a model: `beam_search` and `sample` run any network whose
`step_fn(tokens, index, context, cache)` gives the next logits. `translate_ids`, `sample_ids` and
`score_ids` join them to an encoder-decoder, and `LineTranslator` adds a vocabulary: text in, text
out. `generate` goes on from prompts, which a model's `reader` reads at once; `TextGenerator` and
`SequenceGenerator` do so with texts; `TextScorer` tells how likely texts are.
"""

from macaron_tf.decoding.beam_search import beam_search, gather_beams, length_penalty
from macaron_tf.decoding.config import BeamSearchConfig, GenerationConfig, SamplingConfig
from macaron_tf.decoding.drawing import Controls, draw, filter_logits
from macaron_tf.decoding.generation import Prompts, Rules, generate, reader
from macaron_tf.decoding.sampling import sample
from macaron_tf.decoding.scoring import Scores, TextScorer, score_continuations, score_targets
from macaron_tf.decoding.text_generator import (
    Completion,
    FilledContext,
    SequenceGenerator,
    TextGenerator,
    fill_context,
)
from macaron_tf.decoding.translator import (
    Hypothesis,
    LineTranslator,
    Translations,
    sample_ids,
    score_ids,
    target_limits,
    translate_ids,
)

__all__ = [
    "BeamSearchConfig",
    "Completion",
    "Controls",
    "FilledContext",
    "GenerationConfig",
    "Hypothesis",
    "LineTranslator",
    "Prompts",
    "Rules",
    "SamplingConfig",
    "Scores",
    "SequenceGenerator",
    "TextGenerator",
    "TextScorer",
    "Translations",
    "beam_search",
    "draw",
    "fill_context",
    "filter_logits",
    "gather_beams",
    "generate",
    "length_penalty",
    "reader",
    "sample",
    "sample_ids",
    "score_continuations",
    "score_ids",
    "score_targets",
    "target_limits",
    "translate_ids",
]
