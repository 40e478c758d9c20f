"""Fine-tuning from Hugging Face directories of every family."""

import numpy as np
import pytest

from experiments.finetuning.init import read_init
from experiments.finetuning.presets import preset
from experiments.recipe import override, recipe_from_json
from macaron_tf.data.tasks import get_task
from macaron_tf.errors import UserError
from macaron_tf.interop import read_hugging_face, read_hugging_face_language_model
from macaron_tf.models import CausalClassifier, EncoderClassifier
from tests.harness import numpy_of

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.models import test_parity_decoders_huggingface as decoders
from tests.models.test_parity_encoders_huggingface import batch, make, ours_of


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "albert", "electra"])
def test_a_recipe_and_its_weights_are_the_imports(family, tmp_path):
    theirs = make(family, "Model", tmp_path)
    read = read_hugging_face(tmp_path)
    init = read_init(f"hugging-face:{tmp_path}")
    recipe = init.apply(override(preset("macaron", get_task("sst2")), ["max_length=16"]))
    recipe = recipe_from_json(type(recipe), recipe.to_json(), "recipe.json")
    config = recipe.model_config(init.vocabulary.size)
    assert config == read.model.config
    assert init.vocabulary.hash == read.vocabulary.hash
    network = EncoderClassifier(config, 2)
    network.build()
    init.copy_to(network)
    inputs = ours_of(read, batch(theirs, family))
    np.testing.assert_array_equal(
        numpy_of(network.encoder(inputs, training=False)),
        numpy_of(read.model.hidden_states(inputs, training=False)),
    )
    if read.pooler:
        np.testing.assert_array_equal(numpy_of(network.pooler.dense.kernel), read.pooler[0])


def test_a_language_models_scores_come_along(tmp_path):
    decoders.make("gpt2", tmp_path)
    read = read_hugging_face_language_model(tmp_path)
    init = read_init(f"hugging-face:{tmp_path}")
    recipe = init.apply(override(preset("gpt", get_task("mrpc")), ["max_length=16"]))
    config = recipe.model_config(init.vocabulary.size)
    assert config == read.model.config and recipe.limits.causal
    network = CausalClassifier(config, 2, symmetric=True)
    network.build()
    init.copy_to(network)
    inputs = {"token_ids": np.array([[2, 5, 40, 7, 9]], "int32")}
    np.testing.assert_array_equal(
        numpy_of(network.language_model(inputs)), numpy_of(read.model(inputs))
    )


@pytest.mark.parametrize("family", ["xlm", "gpt"])
def test_a_model_without_a_vocabulary_is_refused(family, tmp_path):
    make("xlm", "Model", tmp_path) if family == "xlm" else decoders.make("gpt", tmp_path)
    with pytest.raises(UserError, match="its tokenizer has no counterpart here"):
        read_init(f"hugging-face:{tmp_path}")
