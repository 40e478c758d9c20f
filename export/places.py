"""The model that a run or another place holds, as a module to export."""

import dataclasses
from typing import Any

from experiments.elmo.run import ElmoRun
from experiments.finetune.run import CLASSIFIERS, FinetuningRun
from experiments.run import read_kind
from experiments.translate.run import TranslationRun, is_translator
from export.embedders import WordModule, sentence_module
from export.fine_tuned import classifier_module, fine_tuned_module
from export.generator import generator_module
from export.module import ExportedModule
from export.translator import TranslationModule
from macaron_tf.decoding import BeamSearchConfig
from macaron_tf.errors import UserError
from macaron_tf.models import EncoderTagger
from macaron_tf.objectives import learnt
from macaron_tf.pretrained import load, locate
from macaron_tf.training.checkpoints import weights_record


def open_module(
    place: str, checkpoint: str | None = None, compiled: bool = False, **decoding
) -> tuple[ExportedModule, dict[str, Any]]:
    """The model that a place holds, ready to be written, and the record of its export.

    Args:
        place: of `macaron_tf.load`.
        checkpoint: the weights of a run: "average", "best", "last" or a step; by default as its
            command chooses.
        compiled: see `TranslationModule`; of translators alone.
        decoding: fields of a translator's beam search to replace, such as `n_best=4`.

    Raises:
        UserError: there is no such run or checkpoint, or it cannot be exported so.
    """
    location = locate(place)
    foreign = location.without_recipe
    asked = {**decoding, "compile": True} if compiled else decoding  # flags of translators
    if foreign and checkpoint:
        raise UserError(f"--checkpoint: {place} is no run and has one set of weights")
    if foreign:
        found = load(place)
        record = {"run": found.name, "checkpoint": place}
        if isinstance(found.network, (*CLASSIFIERS, EncoderTagger)):
            return classifier_module(place, found), record
        if is_translator(found):
            given = (found.network, found.vocabulary, BeamSearchConfig(**decoding), compiled)
            return TranslationModule(*given), record
        learns = learnt(found.objective)
        kind = "pretraining" if learns.causal or learns.encoder_decoder else "embedding"
    else:
        place, checkpoint = str(location.folder), checkpoint or location.checkpoint
        kind = read_kind(place)
    if asked and kind != "translation":
        flag = next(iter(asked)).replace("_", "-")
        raise UserError(f"--{flag}: {place} is no translator, and searches nothing")
    if kind == "embedding":
        return sentence_module(place, checkpoint)
    if kind in ("pretraining", "text_to_text"):
        return generator_module(place, checkpoint)
    run = {"elmo": ElmoRun, "finetuning": FinetuningRun}.get(kind, TranslationRun).open(place)
    weights = run.checkpoint(checkpoint)
    if kind == "finetuning":
        module, facts = fine_tuned_module(run, weights)
    elif kind == "elmo":
        module, facts = WordModule(run.load_network(weights), run.vocabulary), {}
    else:
        config = dataclasses.replace(run.recipe.decoding, **decoding)
        network, facts = run.load_network(weights), {"decoding": dataclasses.asdict(config)}
        module = TranslationModule(network, run.vocabulary, config, compiled)
    return module, {"run": run.path.name, **weights_record(weights), **facts}
