"""The command `train`: trains a run of any kind, and prints what to try next."""

import argparse

from experiments import registry
from macaron_tf.runs.run import FLAGS, Inputs
from macaron_tf.runs.trainer import Trainer
from macaron_tf.training.callbacks import make_callbacks


def run(options: argparse.Namespace) -> None:
    settings = [f"init={options.init}"] if options.init else []
    named = {name: vars(options)[name] for name in (*FLAGS, "devices", "tfds", "trust_code")}
    inputs = Inputs(**named, resumes=options.resume is not None)
    callbacks = make_callbacks(options.callback)
    recipe = None if inputs.resumes else registry.load(options.recipe)
    trainer = Trainer(recipe, options.run, [*settings, *options.set], inputs)
    result = trainer.run(callbacks)
    print(f"stopped after step {result.step:,}: {result.reason}; {result.elapsed_seconds:.0f} s")
    recipe, path = trainer.plan.run.recipe, trainer.plan.run.path
    if result.best_step is not None:
        metric = recipe.training.best_metric
        print(trainer.best.format(metric=metric, score=result.best_score, step=result.best_step))
    if options.no_hints:
        return
    data_flag = f" --data-dir {options.data_dir}" if options.data_dir else ""
    trust_flag = " --trust-code" if recipe.names_code else ""
    lines = [
        "macaron " + command.format(run=path, data=data_flag) + trust_flag
        for command in trainer.next
    ]
    lines.append(f"tensorboard --logdir {path}")
    print("next: " + "\n      ".join(lines))
