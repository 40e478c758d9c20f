"""The contract of every model, see `tests.harness.check_model`."""

import keras
import pytest

from macaron_tf import models
from tests.harness import check_model, ids
from tests.objectives.toy import tiny
from tests.systems_toy import SYSTEMS

TOKENS, PAIRS = {"token_ids": ids(2, 7)}, {"token_ids": ids(3, 2, 7)}
GPT = {"causal": True, "num_segments": 0}
XL = {**GPT, "positions": "transformer_xl", "clamp_length": 5, "shared_position_biases": True}
T5 = {"hidden_dim": 16, "num_heads": 2, "head_dim": 6, "num_encoder_layers": 1, "dropout": 0.0}
OWN_SOURCE = {"vocab_size": 24, "num_source_layers": 1, "source_vocab_size": 40}
# Arguments that no system has: a model, not yet built, and its inputs.
CONTRACTS = [
    (models.CausalChooser(tiny(**GPT)), PAIRS),
    (models.LanguageModel(tiny(**GPT, output_bias=True, embedding_dim=8)), TOKENS),
    (
        models.PretrainingEncoder(tiny(), head_options={"transform": False, "activation": "relu"}),
        TOKENS,
    ),
    *(
        (models.SegmentLanguageModel(tiny(**XL, adaptive_cutoffs=(16, 40), **options), 6), TOKENS)
        for options in ({}, {"adaptive_divisor": 2}, {"tied": False})
    ),
    (models.SiameseEncoder(tiny(), "max", True, 3, "|u-v|,u*v"), PAIRS),
    (
        models.TemporalModel(
            models.TemporalConfig(20, (6, 8), vocab_size=20, embedding_dim=8, tied=True)
        ),
        ids(2, 9),
    ),
    (
        models.EncoderDecoder(
            models.catalog.config("t5_1_1_small", **T5, vocab_size=24, num_decoder_layers=1)
        ),
        {"source": ids(3, 7), "target": ids(3, 6)},
    ),
    (
        models.EncoderDecoder(models.catalog.config("bart_tiny", **OWN_SOURCE, logits_bias=True)),
        {"source": ids(3, 7), "target": ids(3, 6)},
    ),
]


@pytest.mark.parametrize(
    ("model", "inputs"), CONTRACTS, ids=lambda case: case.name if hasattr(case, "name") else ""
)
def test_a_model_keeps_its_contract(model, inputs, tmp_path):
    check_model(model, inputs, tmp_path)


# Each kind of model once.
NAMES = ["albert", "span_bert", "gpt", "gpt_classification", "transformer_xl", "xlnet", "t5"]
NAMES += ["bart", "electra", "classification", "question_answering", "tagging"]
NAMES += ["sentence_classes", "elmo", "word_tagging", "tcn"]


# Models that are one of the others with a head more.
LONG = {"span_bert", "electra", "bart", "gpt_classification"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in NAMES]
)
def test_a_system_s_model_keeps_its_contract(name, tmp_path):
    system = SYSTEMS[name]
    keras.utils.set_random_seed(1)
    batch = next(iter(system.batches()))
    network = system.network(system.blocks[0])
    inputs = {name: x for name, x in batch.items() if name in (network.input_names or batch)}
    if "token_ids" not in batch and "source" not in batch:
        inputs = batch[system.inputs[0]]
    check_model(network, inputs, tmp_path)
