"""Starts of a fine-tuning: the weights that are taken over, and refusals."""

import numpy as np
import pytest

import macaron_tf
from experiments.finetune.__main__ import main
from experiments.finetune.init import read_init
from experiments.finetune.run import FinetuningRun
from experiments.pretrain.recipe import PretrainingRecipe
from experiments.pretrain.run import PretrainingRun
from experiments.recipe import override
from macaron_tf.data.corpus.config import CorpusConfig
from macaron_tf.errors import UserError
from macaron_tf.text.wordpiece import SPECIAL_PIECES, WordPieceVocabulary
from macaron_tf.training import TrainingConfig
from macaron_tf.training.progress import read_lines
from tests.experiments.task_toys import (
    FILLERS,
    assert_same_weights,
    not_yet_trained,
    write_untrained,
)
from tests.interop.bert_directory import write_bert


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


def test_a_keras_hub_preset_is_fine_tuned_by_one_command(toy, tmp_path):
    keras_hub = pytest.importorskip("keras_hub")
    words = WordPieceVocabulary.load(toy / "vocabulary").words
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=len(words),
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=24,
    )
    backbone.save_to_preset(str(tmp_path / "preset"))
    keras_hub.models.BertTokenizer(vocabulary=list(words), lowercase=True).save_to_preset(
        str(tmp_path / "preset")
    )
    settings = {
        "batch_size": 16,
        "max_length": 16,
        "training.max_steps": 2,
        "training.validate_every": 2,
        "training.log_every": 1,
        "training.learning_rate": 1e-9,  # what is trained stays what was read
    }
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    run = tmp_path / "run"
    arguments = ["train", "sst2", str(run), "--init", f"keras-hub:{tmp_path}/preset"]
    assert main([*arguments, "--source", f"tsv:{toy}/{{split}}.tsv", *flags]) == 0
    lines = read_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "train"] == [1, 2]
    opened = FinetuningRun.open(run)
    assert opened.result().step == 2
    assert dict(opened.recipe.model_options)["activation"] == "gelu_tanh"
    network = opened.load_network()
    table = network.encoder.embeddings.tokens.table
    theirs = backbone.token_embedding.get_weights()[0]
    np.testing.assert_allclose(np.asarray(table)[: len(words)], theirs, atol=1e-6)
    np.testing.assert_allclose(
        network.pooler.dense.kernel, backbone.pooled_dense.get_weights()[0], atol=1e-6
    )
