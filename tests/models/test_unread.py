"""A network names the settings that it ignores, and those settings change nothing."""

import dataclasses

import keras
import numpy as np
import pytest

from macaron_tf.models import catalog
from macaron_tf.models.config import READ_BY_SOME
from macaron_tf.settings import SettingError, hints_of
from tests.harness import ids, normal, numpy_of, rejects
from tests.toys.marks import slow

SHAPES = {"vocab_size": 24, "hidden_dim": 16, "feed_forward_dim": 96, "num_heads": 2}
SHAPES |= {"max_length": 12, "head_dim": None}
EMBEDDED = {"embedding_dim": 8, "embedding_dropout": 0.3}
# A catalog name and changes for each family.
FAMILIES = {
    "bert": ("bert_tiny", {}),
    "macaron": ("macaron_bert_tiny", {"scheme": "channels/2, tokens, channels/2"}),
    "swish_rnn": ("swish_rnn_tiny", {}),
    "gmlp": ("gmlp_tiny", {}),
    "amlp": ("amlp_tiny", {}),
    "albert": ("albert_base", {"embedding_dim": 8}),
    "gpt": ("gpt2_tiny", {}),
    "modern_bert": ("modern_bert_tiny", {"attention_windows": (0, 4)}),
    "without_channels": ("bert_tiny", {"scheme": "tokens"}),
    "recurrence_alone": ("swish_rnn_tiny", {"scheme": "channels"}),
    "transformer_xl": ("transformer_xl_tiny", {"adaptive_cutoffs": (6, 12)}),
    "xlnet": ("xlnet_tiny", {}),
    "translation": ("transformer_tiny", {}),
    "t5": ("t5_tiny", {}),
    "bart": ("bart_tiny", {}),
    "lstm": ("tcn_ptb_words", {"mixer": "lstm", "output_dim": 24, "widths": (8,), **EMBEDDED}),
    "tcn": ("tcn_ptb_words", {"output_dim": 24, "widths": (8, 8), "dropout": 0.3, **EMBEDDED}),
    "vectors": ("tcn_jsb", {"widths": (8,), "vocab_size": 0}),
}
# A value, other than the catalog's, of each setting that is no flag.
OTHERS = {
    "head_dim": 4,
    "scale_dim": 24,
    "attention_dropout": 0.4,
    "relative_bias": "shared",
    "num_kv_heads": 1,
    "qk_norm": "head",
    "activation": "silu",
    "activation_dropout": 0.4,
    "rnn_gate": "sigmoid",
    "rnn_step_sizes": (2,),
    "tiny_attention_dim": 4,
    "clamp_length": 2,
    "position_layout": "concatenated",
    "rotary_base": 100.0,
    "local_rotary_base": 100.0,
    "rotary_dim": 2,
    "rotary_scaling": (2.0,),
    "positions": "none",
    "adaptive_divisor": 2,
    "initializer": "lecun_normal",
    "embedding_dropout": 0.4,
    "kernel_size": 2,
}


def another(config, name):
    """Returns another value of a setting."""
    value = getattr(config, name)
    return not value if isinstance(value, bool) else OTHERS[name]


def config_of(family):
    """Returns the family's configuration with two layers."""
    name, changes = FAMILIES[family]
    known = catalog.config(name)
    depths = {field: 2 for field in hints_of(type(known)) if field.endswith("coder_layers")}
    sizes = {**SHAPES, "num_layers": 2, **depths}.items()
    sizes = {name: size for name, size in sizes if name in hints_of(type(known))}
    return dataclasses.replace(known, **{**sizes, **changes})


def outputs(config, drawn: bool = True):
    """Returns the weights of a network, and its outputs in inference and in training.

    Args:
        config: configuration of the network.
        drawn: whether to keep the initial weights. Otherwise, fixed random weights replace them.
    """
    keras.utils.set_random_seed(1)
    network = catalog.network(config)
    network.build()
    if not drawn:
        network.set_weights([normal(*w.shape, seed=i) for i, w in enumerate(network.weights)])
    inputs = ids(2, 7)
    pair = {"source": inputs, "target": inputs}
    if network.input_names:
        inputs = pair if "source" in network.input_names else {"token_ids": inputs}
    elif not config.vocab_size:
        inputs = normal(2, 7, config.input_dim)
    weights = [(weight.path, np.asarray(weight)) for weight in network.weights]
    answers = [numpy_of(network(inputs, training=training)) for training in (False, True)]
    return [*weights, *(("", answer) for answer in answers)]


# A family of each kind of network; `make test-slow` takes the others.
NAMES = slow(*FAMILIES, but=("lstm", "tcn", "vectors"))


@pytest.mark.thorough
@pytest.mark.parametrize("family", NAMES)
def test_what_a_network_does_not_read_changes_nothing(family):
    config = config_of(family)
    unread = catalog.network(config).unread()
    assert unread or family == "tcn"
    expected = outputs(config, drawn=False)
    for name in unread:
        changed = outputs(dataclasses.replace(config, **{name: another(config, name)}), drawn=False)
        assert [path for path, _ in changed] == [path for path, _ in expected]
        if name == "scaled_outputs":  # one more initializer changes dropout's seed
            changed, compared = changed[:-1], expected[:-1]
        else:
            compared = expected
        np.testing.assert_equal(changed, compared, err_msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("family", NAMES)
def test_what_a_network_reads_changes_it(family):
    """Each setting that a network does not report as ignored changes its outputs.

    Settings of heads are exempt.
    """
    config = config_of(family)
    heads = ("output_bias", "adaptive_divisor", "tied")
    known = hints_of(type(config)).keys() & {*READ_BY_SOME}
    known -= {*catalog.network(config).unread(), *heads}
    expected = outputs(config)
    for name in known:
        if (other := another(config, name)) == getattr(config, name):
            continue
        try:
            changed = outputs(dataclasses.replace(config, **{name: other}))
        except SettingError:  # excluded by another setting
            continue
        equal = len(changed) == len(expected) and all(
            one.shape == other.shape and np.array_equal(one, other)
            for (_, one), (_, other) in zip(changed, expected, strict=True)
        )
        assert not equal, name


def test_a_build_is_refused():
    sentence = "clamp_length has no effect in this network: leave clamp_length out"
    rejects(f"^{sentence}$", catalog.build, "bert_tiny", clamp_length=3)
    rejects("gated has no effect in this network", catalog.build, "swish_rnn_tiny", gated=True)
    assert catalog.build("swish_rnn_tiny", rnn_gate="sigmoid", vocab_size=9).built
