"""Tests of the catalog: parameter counts of the papers' models, names, and errors."""

import dataclasses
import functools

import keras
import numpy as np
import pytest

from macaron_tf.layers import MacaronBlock
from macaron_tf.layers.config import BlockConfig
from macaron_tf.layers.heads import Pooler
from macaron_tf.models import Encoder, LanguageModel, TemporalConfig, catalog
from macaron_tf.training.config import TrainingConfig
from macaron_tf.training.optimizer import make_optimizer
from macaron_tf.variables import spec_of
from tests.harness import rejects
from tests.toys.marks import slow

# Exact numbers of parameters.
EXACT = {
    # Hugging Face's openai-gpt and gpt2, whose vocabularies are not padded to a multiple of 8.
    "gpt_base": 116_534_784,
    "gpt2_base": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    # Hugging Face's Llamas with these sizes.
    "llama_7b": 6_738_415_616,
    "llama_3_8b": 8_030_261_248,
    "modern_bert_base": 149_014_272,
    "modern_bert_large": 394_781_696,
    # Hugging Face's models with these sizes; the papers state 60M, 220M, 770M, 2.8B and 11B (Raffel
    # et al. 2020, section 3.7).
    "t5_small": 60_506_624,
    "t5_base": 222_903_552,
    "t5_large": 737_668_096,
    "t5_3b": 2_851_598_336,
    "t5_11b": 11_307_321_344,
    "t5_1_1_small": 76_961_152,
    "t5_1_1_base": 247_577_856,
    "t5_1_1_large": 783_150_080,
    "t5_1_1_xl": 2_849_757_184,
    "t5_1_1_xxl": 11_135_332_352,
    # The sizes of the released script, with tied adaptive softmax; Dai et al. 2019, table 1: 151M.
    "transformer_xl_base": 151_107_538,
}
PIECES = {
    "gpt": 40_478,
    "gpt2": 50_257,
    "bart": 50_265,
    "transformer": 267_735,
}  # of the published vocabularies
# Millions to the last published digit, with the pooler if the paper counts it.
MILLIONS = {
    # Devlin et al. 2018: 110M and 340M, with the pooler of 0.6M and 1.0M, which is a head here.
    "bert_base": 108.9,
    "bert_large": 334.1,
    "swish_rnn_base": 109.0,
    # RoBERTa 125M and 355M (Liu et al. 2019), ELECTRA's discriminator 14M (Clark et al. 2020, table
    # 1), XLM 250M.
    "roberta_base": 124.6,
    "roberta_large": 355.4,
    "electra_small": 13.5,
    "xlm_xnli": 249.0,
    # Slides: ALBERT's table 1, gMLP's table 6.
    "albert_base": 12,
    "albert_large": 18,
    # What their sizes come to, not the published 60M and 235M: V E + 512 E + E D of the embeddings,
    # 12 D^2 + 13 D of the shared layer, and D^2 of the pooler.
    "albert_xlarge": 58.7,
    "albert_xxlarge": 222.6,
    "gmlp_base": 130,
    "gmlp_large": 365,
    "amlp_base": 109,
    "amlp_large": 316,
    # XLNet's released sizes.
    "xlnet_base": 117,
    "xlnet_large": 360,
    # Hugging Face keeps two unused positions in each of the two tables.
    "bart_base": 139,
    "bart_large": 406,
}
# Slides, ALBERT's tables 3 and 4: sharing, E, millions.
ABLATIONS = [
    ("none", 64, 87), ("none", 128, 89), ("none", 256, 93), ("none", 768, 108),
    ("all", 64, 10), ("all", 128, 12), ("all", 256, 16), ("all", 768, 31),
    ("attention", 768, 83), ("attention", 128, 64),
    ("feed_forward", 768, 57), ("feed_forward", 128, 38),
]  # fmt: skip
# Brown et al. 2020, table 2.1, in millions.
GPT3 = {
    "small": 125, "medium": 350, "large": 760, "xl": 1_300,
    "2.7b": 2_700, "6.7b": 6_700, "13b": 13_000, "175b": 175_000,
}  # fmt: skip
DEPTHS = ("num_layers", "num_encoder_layers", "num_decoder_layers")
BERTS = ("bert", "bert_rab", "swish_rnn", "macaron_bert")


@pytest.fixture(autouse=True)
def forgotten():
    """Clears Keras's session after each test.

    Otherwise, the next symbolic call would allocate gigabytes for variables without values.
    """
    yield
    keras.utils.clear_session(free_memory=False)


def shaped(name: str, **changes):
    """Returns a model whose weights have shapes but no values."""
    config = catalog.config(name, **changes)
    with keras.StatelessScope(initialize_variables=False):
        writes = name.startswith(("gpt", "llama", "transformer_xl"))
        model = LanguageModel(config) if writes else catalog.network(config)
        model.build()
    return model


@functools.cache
def counted(name: str, **changes) -> int:
    return shaped(name, **changes).count_params()


def parameters(name: str, pooler: bool = False, **changes) -> int:
    """Returns a model's parameter count, extrapolated from models with one and two layers.

    A slow test checks the extrapolation.
    """
    config = catalog.config(name, **changes)
    depths = {field: n for field, n in dataclasses.asdict(config).items() if field in DEPTHS}
    shallow = {**changes, **dict.fromkeys(depths, 1)}
    count = counted(name, **shallow)
    for field, depth in depths.items():
        count += (depth - 1) * (counted(name, **{**shallow, field: 2}) - counted(name, **shallow))
    head = Pooler()
    with keras.StatelessScope(initialize_variables=False):
        head.build((None, None, config.hidden_dim))
    return count + pooler * head.count_params()


def matrices(model) -> int:
    return sum(int(np.prod(w.shape)) for w in model.weights if len(w.shape) > 1)


def published(name: str) -> dict:
    """Returns a model's published vocabulary size as a keyword argument.

    Returns {} if the catalog does not pad the vocabulary of this model.
    """
    family = name.split("_")[0]
    return {"vocab_size": PIECES[family]} if family in PIECES else {}


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_sizes_are_exactly_the_released_models(name, count):
    options = published(name)
    assert parameters(name, **options) == count
    if options:
        assert catalog.config(name).vocab_size == -(-options["vocab_size"] // 8) * 8


@pytest.mark.parametrize(("name", "millions"), MILLIONS.items())
def test_sizes_are_the_papers(name, millions):
    pooler = name.startswith(("albert", "roberta"))
    digits = 1 if isinstance(millions, float) else None
    assert round(parameters(name, pooler, **published(name)) / 1e6, digits) == millions


@pytest.mark.parametrize("size", GPT3)
def test_gpt3_counts_as_its_table(size):
    assert parameters(f"gpt3_{size}") / 1e6 == pytest.approx(GPT3[size], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXACT, *MILLIONS, *(f"gpt3_{size}" for size in GPT3)])
def test_all_layers_count_alike(name):
    assert counted(name, **published(name)) == parameters(name, **published(name))


@pytest.mark.parametrize(("sharing", "embedding_dim", "millions"), ABLATIONS)
def test_sharing_and_factorization_count_as_in_the_slides(sharing, embedding_dim, millions):
    """The ALBERT paper counts the pooler's 0.59M parameters only in models with shared layers."""
    changes = {"sharing": sharing, "embedding_dim": embedding_dim}
    count = parameters("albert_base", pooler=sharing != "none", **changes)
    assert round(count / 1e6) == millions


def test_elmo_counts_its_93_6_million_parameters():
    """Peters et al. 2018 leave out the matrix that scores words."""
    count = shaped("elmo_original", vocab_size=1).count_params()
    assert count / 1e6 == pytest.approx(93.6, rel=0.01)


@pytest.mark.parametrize("size", ["tiny", "mini", *slow("base")])
def test_all_berts_hold_equal_matrices(size):
    counts = {family: matrices(shaped(f"{family}_{size}", vocab_size=8)) for family in BERTS}
    # Only BERT-rab and SwishRNN have a relative bias, with 32 H numbers per layer.
    layers = catalog.config(f"bert_{size}")
    bias = 32 * layers.num_heads * layers.num_layers
    assert counts["macaron_bert"] == counts["bert"]
    assert counts["bert_rab"] == counts["swish_rnn"] == counts["bert"] + bias


@pytest.mark.parametrize("size", ["tiny", "small", *slow("base", "big")])
def test_macaron_and_transformer_have_equal_parameters(size):
    """A Macaron layer has 3 D more parameters than a Transformer layer: a bias and a LayerNorm."""
    macaron, plain = (shaped(f"{name}_{size}", vocab_size=8) for name in ("macaron", "transformer"))
    assert matrices(macaron) == matrices(plain)
    config = macaron.config
    layers = config.num_encoder_layers + config.num_decoder_layers
    assert macaron.count_params() - plain.count_params() == 3 * config.hidden_dim * layers


@pytest.mark.parametrize("name", ["t5_tiny", "bart_tiny", "transformer_xl_tiny"])
def test_every_block_holds_equal_matrices(name):
    models = [shaped(name, block=block) for block in ("transformer", "macaron", "swish_rnn")]
    if name == "transformer_xl_tiny":
        assert len({round(model.count_params() / 1e4) for model in models}) == 1
    else:
        assert len(set(map(matrices, models))) == 1


def test_inner_widths_are_the_papers():
    swish = Encoder(catalog.config("swish_rnn_large", vocab_size=8))
    assert [b.feed_forward_1.sublayer.inner_dim for b in swish.stack.blocks] == [2752] * 24
    assert [b.rnn_step_size for b in swish.stack.blocks] == [1, 2, 4] * 8


@pytest.mark.parametrize("name", catalog.names(TemporalConfig))
@pytest.mark.parametrize("mixer", ["lstm", "gru", "rnn"])
def test_recurrent_models_of_equal_size_are_within_two_percent(name, mixer):
    config = catalog.config(name)
    recurrent = config.equal_sized(mixer)
    assert recurrent.parameters == pytest.approx(config.parameters, rel=0.02)
    assert recurrent.mixer == mixer and recurrent.dropout == config.dropout


@pytest.mark.parametrize(
    ("task", "millions"),
    # "Model size (about)": the slide rounds, mostly upwards.
    [
        ("adding", 0.07), ("copy_memory", 0.016), ("jsb", 0.3), ("nottingham", 1.0),
        ("mnist", 0.07), ("ptb_words", 13.0), ("ptb_characters", 3.0),
    ],
)  # fmt: skip
def test_the_slides_sizes_of_the_tcn(task, millions):
    assert catalog.config(f"tcn_{task}").parameters == pytest.approx(millions * 1e6, rel=0.6)


def test_every_entry_is_a_valid_configuration():
    for name in catalog.names():
        config = catalog.config(name)
        assert isinstance(config, catalog.Config) and name in catalog.names(type(config))


def test_names_and_overrides():
    assert {"macaron_tiny", "transformer_big"} <= set(catalog.names())
    assert catalog.config("macaron_small", feed_forward_dim=2048).feed_forward_dim == 2048
    known = "the name 'macaron_huge': give one of .*meant 'macaron"
    rejects(known, catalog.build, "macaron_huge")
    rejects("EncoderDecoderConfig has no setting 'width'", catalog.config, "macaron_tiny", width=3)
    options = {"intermediate_size": 3}
    rejects("perhaps you meant 'feed_forward_dim'", catalog.config, "macaron_tiny", **options)
    for block in (MacaronBlock, BlockConfig):
        rejects("perhaps you meant 'num_kv_heads'", block, num_key_value_heads=3)
    with pytest.raises(ImportError, match="perhaps you meant 'load'"):
        from macaron_tf import AutoModelForCausalLM  # noqa: F401


TCN = TemporalConfig(5, (6, 7), kernel_size=3, input_dim=4)
BERT, GPT, T5 = (catalog.config(name) for name in ("bert_tiny", "gpt2_tiny", "t5_tiny"))


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (BERT, {"hidden_dim": 127}, "hidden_dim=127 is not a multiple of num_heads=4"),
        (BERT, {"block": ()}, "block is empty"),
        (GPT, {"attention_windows": 9, "positions": "transformer_xl"}, "excludes positions='tr"),
        (GPT, {"attention_windows": 9, "block": "gmlp"}, "excludes block='gmlp'"),
        (T5, {"attention_windows": 9}, "attention_windows needs an encoder"),
        (T5, {"positions": "rotary"}, "positions='rotary' needs relative_bias='none'"),
        (TCN, {"input_dim": 0}, "set either"),
        (TCN, {"tied": True}, "tied=True needs"),
    ],
)
def test_a_bad_field_is_named(config, changes, words):
    rejects(words, dataclasses.replace, config, **changes)


def decayed(model) -> list:
    """Returns the variables of a model that the optimizer of `TrainingConfig` decays."""
    config = TrainingConfig(weight_decay=0.1, decay_vectors=False)
    optimizer = make_optimizer(config, model.trainable_variables)
    optimizer.build(model.trainable_variables)
    return [v for v in model.trainable_variables if optimizer._use_weight_decay(v)]


@pytest.mark.parametrize(
    ("system", "biases"),
    [
        ("bert_rab_tiny", {f"relative_bias_{n}/table" for n in range(3)}),
        ("t5_tiny", {"relative_bias_0/table"}),
        ("xlnet_tiny", {"content_bias", "distance_bias", "segment_bias"}),
        ("swish_rnn_tiny", {f"relative_bias_{n}/table" for n in range(3)}),
        ("amlp_tiny", set()),
    ],
)
def test_biases_of_any_rank_are_spared_the_weight_decay(system, biases):
    """Weight decay excludes biases of any rank, but no matrix, embedding or segment vector."""
    sizes = {"vocab_size": 20, "hidden_dim": 16, "feed_forward_dim": 32, "num_heads": 2}
    model = catalog.build(system, **sizes)
    decays = decayed(model)
    assert all(len(v.shape) > 1 for v in decays)
    paths = {v.path for v in model.trainable_variables if len(v.shape) > 1}
    spared = paths - {v.path for v in decays}
    assert {name for path in spared for name in biases if path.endswith(name)} == biases
    assert all(path.endswith(tuple(biases)) for path in spared)


@pytest.mark.parametrize(
    ("system", "parts"),
    [
        ("t5_tiny", {"query_key_value": 3, "key_value": 2, "inner": 2}),
        ("xlnet_tiny", {"key_value": 2}),
        ("swish_rnn_tiny", {"query_key_value": 3, "inner": 2}),
        ("gmlp_tiny", {"inner": 2}),
        ("llama_tiny", {"key_value": 2, "inner": 2}),
    ],
)
def test_layers_say_which_matrices_lie_side_by_side(system, parts):
    sizes = {"vocab_size": 20, "hidden_dim": 16, "feed_forward_dim": 32}
    model = catalog.build(system, **sizes, **({"gated": True} if system == "t5_tiny" else {}))
    found = {v.path.split("/")[-2]: spec_of(v).parts for v in model.trainable_variables}
    assert {name: count for name, count in found.items() if count > 1} == parts


def test_names_of_models_and_layers_do_not_decide_the_weight_decay():
    """Matrices in layers named "bias" are decayed, and Keras biases of rank 2 are not."""
    inputs = keras.Input((5, 6))
    x = keras.layers.Dense(6, name="bias_free")(inputs)
    x = keras.layers.MultiHeadAttention(2, 3, name="unbiased")(x, x)
    outputs = keras.layers.GRU(4, name="bias")(x)
    model = keras.Model(inputs, outputs, name="bias_detector")
    assert [v.name for v in decayed(model)] == ["kernel"] * 6 + ["recurrent_kernel"]
    ranks = [len(v.shape) for v in model.trainable_variables if v.name == "bias"]
    assert sorted(ranks) == [1, 1, 2, 2, 2, 2]
