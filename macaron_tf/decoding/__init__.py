"""Decoding: beam search, sampling, text generation and scoring.

`beam_search` and `generate` take a step function, and `generate` continues prompts from the state
that `first_state` returns. `translate_ids` and `score_ids` take an encoder-decoder and
token ids. `LineTranslator`, `TextGenerator`, `SequenceGenerator` and `TextScorer` take text.
"""

from macaron_tf.decoding.back_translation import BackTranslationObjective
from macaron_tf.decoding.beam_search import BeamSearchConfig, beam_search
from macaron_tf.decoding.sampling import (
    Controls,
    GenerationConfig,
    Prompts,
    Rules,
    first_state,
    generate,
)
from macaron_tf.decoding.scoring import TextScorer, score_ids
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
    translate_ids,
)
