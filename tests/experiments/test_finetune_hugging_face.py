"""Fine-tuning from Hugging Face directories of every family."""

import numpy as np
import pytest
import tensorflow as tf

from experiments.embed import run as embedding
from experiments.finetune import __main__ as finetune
from experiments.finetune.init import read_init
from experiments.finetune.run import FinetuningRun, Predictor
from export.fine_tuned import ClassifierModule
from macaron_tf.errors import UserError
from macaron_tf.interop import read_encoder, read_language_model
from macaron_tf.models import CausalClassifier
from macaron_tf.training.progress import read_lines
from tests.experiments.pretraining_toy import flags
from tests.experiments.task_toys import not_yet_trained, write_table
from tests.harness import numpy_of

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers

from tests.interop import test_parity_language_models as language_models
from tests.interop.test_parity_encoders import batch, make, ours_of
from tests.interop.test_vocabularies import XLNET, train_sentencepiece


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "albert", "electra"])
def test_a_recipe_and_its_weights_are_the_imports(family, tmp_path):
    theirs = make(family, "Model", tmp_path)
    read = read_encoder(tmp_path)
    init, recipe, network = not_yet_trained(f"hugging-face:{tmp_path}")
    assert recipe.model_config(init.vocabulary.size) == read.network.config
    assert init.vocabulary.hash == read.vocabulary.hash
    inputs = ours_of(read, batch(theirs, family))
    np.testing.assert_array_equal(
        numpy_of(network.encoder(inputs, training=False)),
        numpy_of(read.network.hidden_states(inputs, training=False)),
    )
    if read.pooler:
        np.testing.assert_array_equal(
            numpy_of(network.pooler.dense.kernel), numpy_of(read.pooler.dense.kernel)
        )


def test_a_language_models_scores_come_along(tmp_path):
    language_models.make("gpt2", tmp_path)
    read = read_language_model(tmp_path)
    init, recipe, network = not_yet_trained(f"hugging-face:{tmp_path}", "mrpc", name="gpt")
    assert recipe.model_config(init.vocabulary.size) == read.network.config
    assert recipe.limits.causal
    assert isinstance(network, CausalClassifier) and network.symmetric
    inputs = {"token_ids": np.array([[2, 5, 40, 7, 9]], "int32")}
    np.testing.assert_array_equal(
        numpy_of(network.language_model(inputs)), numpy_of(read.network(inputs))
    )


@pytest.fixture(scope="module")
def xlnet_place(tmp_path_factory):
    """An XLNet that classifies, its tokenizer, and the place of both."""
    directory = tmp_path_factory.mktemp("xlnet")
    (directory / "spiece.model").write_bytes(train_sentencepiece(**XLNET))
    tokenizer = transformers.XLNetTokenizer.from_pretrained(directory)
    options = {"vocab_size": len(tokenizer), "num_labels": 2}
    model = language_models.make("xlnet", directory, "ForSequenceClassification", **options)
    return model, tokenizer, f"hugging-face:{directory}"


def test_xlnet_classifies_as_theirs(xlnet_place):
    theirs, tokenizer, given = xlnet_place
    init, recipe, network = not_yet_trained(given, "mrpc", "max_length=48", name="bert")
    output = theirs.logits_proj
    network.head.dense.set_weights([output.weight.detach().numpy().T, output.bias.detach().numpy()])
    first, second = ["the quick brown fox", "the dog"], ["Der schnelle braune", "1,234.56 texts."]
    # Padded on the left, ours on the right.
    options = {"padding": True, "return_token_type_ids": True, "return_tensors": "pt"}
    with torch.no_grad():
        expected = theirs(**tokenizer(first, second, **options)).logits
    found = Predictor(network, init.vocabulary, recipe).of_texts(first, second)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
    module = ClassifierModule(network, init.vocabulary, recipe.described, recipe.max_length)
    probabilities = module.serve(tf.constant(first), tf.constant(second))["probabilities"]
    np.testing.assert_allclose(probabilities, expected.softmax(-1).numpy(), atol=1e-5)
    # Its rows do not begin with [CLS].
    for task in ("squad", "conll2003"):
        with pytest.raises(UserError, match=r"rows that begin with \[CLS\]"):
            not_yet_trained(given, task, "spans.max_question=4", name="bert")
    with pytest.raises(UserError, match="an XLNet whose rows end"):
        embedding.read_start(given)


@pytest.mark.parametrize("system", ["gpt", "xlnet"])
def test_a_run_from_it_is_trained_and_opened_again(system, xlnet_place, tmp_path):
    run, given = tmp_path / "run", xlnet_place[-1]
    if system == "gpt":
        size = language_models.write_gpt_vocabulary(tmp_path)
        language_models.make("gpt", tmp_path, vocab_size=size)
        given = f"hugging-face:{tmp_path}"
    for split in ("train", "validation"):
        rows = [("the wheel", "he", "1"), ("well, hell", "1,234 we", "0")] * 4
        write_table(tmp_path / f"{split}.tsv", rows, "sentence1\tsentence2\tlabel")
    settings = ["max_length=16", "batch_size=4", "training.max_steps=2", "epochs=None"]
    settings += ["warmup_fraction=None", "validate_epochs=None", "training.validate_every=2"]
    command = ["train", "mrpc", str(run), "--init", given]
    command += ["--source", f"tsv:{tmp_path}/{{split}}.tsv"]
    assert finetune.main([*command, *flags(settings)]) == 0
    losses = [line["loss"] for line in read_lines(run / "metrics.jsonl") if "loss" in line]
    # No token of a row is one that can never come.
    assert losses and max(losses) < 50
    predictor = FinetuningRun.open(run).predictor()
    assert np.isfinite(predictor.of_texts(["the wheel"], ["he"])).all()


@pytest.mark.parametrize("family", ["xlm", "gpt", "xlnet"])
def test_a_model_without_a_vocabulary_is_refused(family, tmp_path):
    if family == "xlm":
        make(family, "Model", tmp_path)
    else:
        language_models.make(family, tmp_path)
    with pytest.raises(UserError, match="has no tokenizer beside it"):
        read_init(f"hugging-face:{tmp_path}")
