"""Decoding: from a model's scores to its outputs.

Searches take a step function, not a model: `beam_search` and `sample` run any network whose
`step_fn(tokens, index, context, cache)` gives the next logits. `translate_ids`, `sample_ids` and
`score_ids` join them to an encoder-decoder, and `LineTranslator` adds a vocabulary: text in, text
out.
"""

from macaron_tf.decoding.beam_search import beam_search, gather_beams, length_penalty
from macaron_tf.decoding.config import BeamSearchConfig, SamplingConfig
from macaron_tf.decoding.lines import Hypothesis, LineTranslator, Translations
from macaron_tf.decoding.sampling import filter_logits, sample
from macaron_tf.decoding.scoring import score_targets
from macaron_tf.decoding.translate import sample_ids, score_ids, target_limits, translate_ids

__all__ = [
    "BeamSearchConfig",
    "Hypothesis",
    "LineTranslator",
    "SamplingConfig",
    "Translations",
    "beam_search",
    "filter_logits",
    "gather_beams",
    "length_penalty",
    "sample",
    "sample_ids",
    "score_ids",
    "score_targets",
    "target_limits",
    "translate_ids",
]
