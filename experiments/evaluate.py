"""The command `evaluate`: scores a run on a split of its task, or a sentence encoder on a task."""

import argparse
import dataclasses
import pkgutil

from experiments.evaluation import embedding
from macaron_tf.errors import UserError
from macaron_tf.runs.recipe import is_among, override
from macaron_tf.runs.run import Run, refuse_flags
from macaron_tf.training.locations import locate

# Flags that apply only to some kinds of runs, or to no run but to any encoder.
_FLAGS = ("corpus", "source", "split", "backward", "task", "lower_case")
# For each kind of run, the function that scores it, and the flags that it reads.
_KINDS = {
    "pretraining": ("held_out:pretraining", ("corpus",)),
    "finetuning": ("finetuning:evaluate", ("source", "split")),
    "embedding": ("embedding:run", ("source", "split", "lower_case")),
    "text_to_text": ("translation:run_texts", ("source", "split")),
    "translation": ("translation:run", ("source", "split", "backward")),
    "elmo": ("held_out:words", ()),
    "sequence": ("held_out:sequences", ()),
}


def run(options: argparse.Namespace) -> None:
    """Prints the scores of a model, and writes them to a JSON file.

    A run is scored by its own kind. With `--task`, any encoder is scored as a sentence encoder.
    """
    location = locate(options.run)
    if location.library and not location.folder.exists():
        raise UserError(f"there is no folder {location.folder}: check the path")
    if location.without_recipe and not options.task:
        raise UserError(f"{options.run} was saved without a training recipe: give --task, or a run")
    opened, options.checkpoint = None, location.checkpoint
    if not location.without_recipe:
        opened = Run.open(location.folder, options.trust_code)
    if options.task:
        refuse_flags(options, _FLAGS, embedding.FLAGS, f"{options.run} as an encoder")
        is_encoder = opened and opened.recipe.kind == "embedding"
        embedding.run(opened if is_encoder else None, options)
        return
    kind = f"a run of kind {opened.recipe.kind}"
    function, flags = _KINDS[opened.recipe.kind]
    refuse_flags(options, _FLAGS, flags, kind)
    if opened.recipe.kind != "embedding":  # whose settings are not those of the recipe
        allowed = opened.recipe.evaluation_settings
        for setting in options.set:
            if not is_among(setting.partition("=")[0], allowed):
                raise UserError(f"--set {setting} has no effect in an evaluation of {kind}")
        recipe = override(opened.recipe, options.set, lambda: opened.recipe)
        opened = dataclasses.replace(opened, recipe=recipe, earlier=opened)
    pkgutil.resolve_name(f"experiments.evaluation.{function}")(opened, options)
