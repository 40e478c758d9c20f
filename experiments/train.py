"""The command `train`: plans a run of any kind, trains it, and prints what to try next."""

import argparse

from experiments import registry
from macaron_tf.errors import UserError
from macaron_tf.io.paths import as_path
from macaron_tf.runs.recipe import Recipe, override
from macaron_tf.runs.run import Inputs, Plan, Run, refuse_flags
from macaron_tf.runs.trainer import fit

# Flags of `train` that only some kinds of runs read.
_FLAGS = ("corpus", "vocabulary", "lower_case", "processes", "own_shards")


def run(options: argparse.Namespace) -> None:
    plan = planned(options)
    result = fit(plan, options.devices, options.callbacks)
    best, commands = plan.ended(result) or (plan.best, plan.next)
    print(f"stopped after step {result.step:,}: {result.reason}; {result.elapsed_seconds:.0f} s")
    recipe = plan.run.recipe
    if result.best_step is not None:
        metric = recipe.training.best_metric
        print(best.format(metric=metric, score=result.best_score, step=result.best_step))
    data_flag = f" --data-dir {options.data_dir}" if options.data_dir else ""
    trust_flag = " --trust-code" if recipe.names_code else ""
    lines = [
        "macaron " + command.format(run=plan.run.path, data=data_flag) + trust_flag
        for command in commands
    ]
    lines.append(f"tensorboard --logdir {plan.run.path}")
    print("next: " + "\n      ".join(lines))


def planned(options: argparse.Namespace) -> Plan:
    """Plans the run that the command `train` describes.

    The recipe has the settings of RECIPE, or with `--resume` those of the saved run; then those of
    the pre-trained model; then those of `--set`.
    """
    path, trust_code, earlier = as_path(options.run), options.trust_code, None
    named = {name: vars(options)[name] for name in (*_FLAGS, "devices", "tfds", "trust_code")}
    inputs = Inputs(**named, resumes=options.resume is not None)
    settings = [f"init={options.init}"] if options.init else []
    if options.init and any(text.startswith("init=") for text in options.set):
        raise UserError("the command has both --init and --set init=: leave one of them out")
    settings += options.set
    if inputs.resumes:
        earlier = Run.existing(path, trust_code)
        recipe = earlier.recipe
    else:
        recipe = registry.load(options.recipe)
        first = [text for text in settings if text.partition("=")[0] in recipe.start_settings]
        recipe = override(recipe, first)
    refuse_flags(options, _FLAGS, recipe.training_flags, f"a recipe of kind {recipe.kind}")
    if options.engine == "jax" and not recipe.trains_on_jax:
        raise UserError(f"--engine jax does not train recipes of kind {recipe.kind}: leave it out")
    start = recipe.read_start(inputs, earlier)
    if not earlier:
        recipe = recipe.started(start)  # the start may have put `init_parts` in order
        given = {*recipe.start_settings} - {"model"}
        settings = [text for text in settings if text.partition("=")[0] not in given]

    def read_saved() -> Recipe | None:
        nonlocal earlier
        earlier = earlier or Run.existing(path, trust_code, recipe.kind)
        return earlier and earlier.recipe

    recipe = override(recipe, settings, read_saved)
    run = Run(
        path,
        recipe,
        earlier.vocabulary if earlier else None,
        data_dir=options.data_dir,
        earlier=earlier,
        settings=settings,
    )
    return recipe.plan(run, start, inputs)
