"""Starts of a fine-tuning: the weights that are taken over, and refusals."""

import numpy as np
import pytest

import macaron_tf
from experiments.finetune.init import read_init
from experiments.finetune.run import FinetuningRun
from experiments.pretrain.run import PretrainingRecipe, PretrainingRun
from experiments.recipe import override
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.errors import UserError
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from macaron_tf.training import TrainingConfig
from tests.experiments.task_toys import (
    FILLERS,
    assert_same_weights,
    not_yet_trained,
    write_untrained,
)
from tests.interop.toys import write_bert


def test_a_pre_training_run_gives_encoder_pooler_and_vocabulary(toy, tmp_path, capsys):
    vocabulary = WordPieceVocabulary.load(toy / "vocabulary")
    pretraining = PretrainingRecipe(
        model="macaron_bert_tiny",
        model_options=(("hidden_dim", 16), ("num_layers", 1), ("max_length", 16)),
        training=TrainingConfig(max_steps=1),
        corpus=CorpusConfig(sources="text:nowhere", sequence_length=12, pairs="next_sentence"),
    )
    pretrained = write_untrained(PretrainingRun(tmp_path / "bert", pretraining, vocabulary))
    init, recipe, network = not_yet_trained(f"{tmp_path}/bert@1")
    assert init.label == "bert" and init.vocabulary.hash == vocabulary.hash
    assert recipe.model == "macaron_bert_tiny"
    assert_same_weights(network.encoder, pretrained.encoder)
    assert_same_weights(network.pooler, pretrained.pooler)

    init.warn(recipe)
    assert "never saw rows of more than 12 tokens" in capsys.readouterr().err
    with pytest.raises(UserError, match="were trained with model.norm='pre', not 'post'"):
        init.check(override(recipe, ["model.norm=post"]))
    init.check(override(recipe, ["model.dropout=0.3"]))
    with pytest.raises(UserError, match="vocabulary"):
        WordPieceVocabulary((*SPECIAL_PIECES, *FILLERS)).save(tmp_path / "other")
        read_init(f"{tmp_path}/bert", vocabulary=tmp_path / "other")
    with pytest.raises(UserError, match="has no checkpoint 7"):
        read_init(f"{tmp_path}/bert@7")


def test_another_tasks_run_gives_its_encoder(toy_run):
    _, _, network = not_yet_trained(str(toy_run), "cola")
    assert_same_weights(network.encoder, FinetuningRun.open(toy_run).load_network().encoder)


def test_another_librarys_bert_is_a_recipe_of_ours(tmp_path):
    pytest.importorskip("safetensors")
    write_bert(tmp_path, config={"hidden_act": "gelu_new"})
    theirs = macaron_tf.load(f"hugging-face:{tmp_path}")
    _, recipe, network = not_yet_trained(f"hugging-face:{tmp_path}", "sst2", "max_length=12")
    assert recipe.model_config(theirs.vocabulary.size) == theirs.config
    assert_same_weights(network.pooler, theirs.pooler)
    assert_same_weights(network.encoder, theirs.network.encoder)


def test_a_keras_hub_preset_is_a_recipe_of_ours(toy, tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    words = WordPieceVocabulary.load(toy / "vocabulary").words
    sizes = dict(num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32)
    backbone = keras_hub.models.BertBackbone(len(words), max_sequence_length=24, **sizes)
    tokenizer = keras_hub.models.BertTokenizer(vocabulary=list(words), lowercase=True)
    for part in (backbone, tokenizer):
        part.save_to_preset(str(tmp_path / "preset"))
    init, recipe, network = not_yet_trained(f"keras-hub:{tmp_path}/preset")
    assert dict(recipe.model_options)["activation"] == "gelu_tanh"
    assert init.vocabulary.words == words
    for own, theirs in (
        (network.encoder.embeddings.tokens.table[: len(words)], backbone.token_embedding),
        (network.pooler.dense.kernel, backbone.pooled_dense),
    ):
        np.testing.assert_allclose(own, theirs.get_weights()[0], atol=1e-6)
