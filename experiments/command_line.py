"""Arguments that several commands of runs share, and what is made of them before a command runs."""

import argparse
import functools
import os
import sys

from macaron_tf.cli import arguments
from macaron_tf.cli.arguments import (
    Command,
    Distinct,
    Part,
    argument,
    checkpoint,
    command,
    count,
    group,
    local_place,
    place,
    settings,
    switch,
    together,
    yes_or_no,
)
from macaron_tf.errors import UserError, needed

# macaron_tf.distribution.STRATEGIES, which cannot be imported without TensorFlow.
STRATEGIES = ("cpu", "one_gpu", "mirrored", "multi_worker", "tpu")
ENGINES = ("tensorflow", "jax")


def _prepare(options: argparse.Namespace, is_process: bool) -> None:
    """Completes a command's options.

    They get `tfds` in a command with `TFDS`, `devices`, the `tf.distribute.Strategy`, in one with
    `DEVICES`, and `callbacks`, `Callbacks` or None, in one with `CALLBACKS`.
    """
    given = vars(options)
    engine, mesh = given.get("engine"), given.get("mesh")
    if engine or mesh:
        _choose_engine(options)
    if given.get("starts"):
        _check_start(options)
    if "checkpoint" in given and "run" in given:
        _name_checkpoint(options)
    if given.get("uses_tfds"):
        from experiments.run import kept_data_dir
        from macaron_tf.data.sources.tfds import Tfds

        if options.data_dir is None and "run" in given:
            options.data_dir = kept_data_dir(options.run)
        options.tfds = Tfds(options.data_dir, options.download)
    if given.get("uses_devices"):
        from macaron_tf.distribution import make_strategy
        from macaron_tf.distribution.device_memory import limit_memory

        # JAX computes, TensorFlow reads the data: it must not take the GPUs.
        strategy = "cpu" if engine == "jax" else options.strategy
        options.devices = make_strategy(strategy, options.tpu, options.replicas)
        if engine == "jax":
            from macaron_tf.distribution.mesh import parse_mesh, use_mesh

            if options.strategy:
                _join_workers()
            use_mesh(mesh and parse_mesh(mesh))
        elif is_process:
            limit_memory()
    if given.get("uses_callbacks"):
        options.callbacks = None
        if options.callback or options.profile:
            from macaron_tf.training.callbacks import Callbacks

            options.callbacks = Callbacks.parsed(options.callback or (), options.profile)


program = functools.partial(arguments.program, prepare=_prepare)
single_program = functools.partial(arguments.single_program, prepare=_prepare)


def _choose_engine(options: argparse.Namespace) -> None:
    """Sets Keras's backend, which its first import reads."""
    others = [name for name in ("strategy", "tpu", "replicas") if vars(options).get(name)]
    if options.engine == "jax":
        if others and options.strategy != "multi_worker":
            raise UserError(
                f"--{others[0]} is of --engine tensorflow: give --mesh, --strategy multi_worker "
                "or neither"
            )
        with needed("--engine jax"):
            import jax  # noqa: F401
    elif options.mesh:
        raise UserError(f"--mesh {options.mesh} is of --engine jax: give it, or leave --mesh out")
    if "keras" in sys.modules and sys.modules["keras"].backend.backend() != options.engine:
        raise UserError(
            f"--engine {options.engine} comes too late: Keras is imported with another backend; "
            f"start the process with KERAS_BACKEND={options.engine}"
        )
    os.environ["KERAS_BACKEND"] = options.engine


def _join_workers() -> None:
    """Joins the processes that TF_CONFIG names, or the cluster that JAX finds."""
    from macaron_tf.distribution import read_cluster
    from macaron_tf.distribution.hosts import join_hosts

    join_hosts(*(read_cluster() if os.environ.get("TF_CONFIG") else ()))


def _name_checkpoint(options: argparse.Namespace) -> None:
    """Takes RUN@CHECKPOINT apart; refuses a checkpoint of a place that has none."""
    if not options.checkpoint and "@" not in (options.run or ""):
        return
    from macaron_tf.places import locate

    found = locate(options.run)
    if options.checkpoint and (found.checkpoint or found.without_recipe):
        has = "names a checkpoint" if found.checkpoint else "is no run and has one set of weights"
        raise UserError(f"{options.run} {has}: leave --checkpoint {options.checkpoint} out")
    if found.checkpoint:
        options.run, options.checkpoint = str(found.folder), found.checkpoint


def _check_start(options: argparse.Namespace) -> None:
    """Puts the folder of `--resume` in the place of RUN; see `unless_resumed`."""
    names = {action.dest: (action.option_strings or [action.dest])[0] for action in options.starts}
    given = [name for dest, name in names.items() if vars(options)[dest] is not None]
    missing = [names[dest] for dest in options.needed if vars(options)[dest] is None]
    if options.resume is None:
        if missing:
            needed = ", ".join(missing)
            options.parser.error(f"the following arguments are required: {needed}; or --resume RUN")
    elif given:
        raise UserError(f"--resume: leave out {', '.join(given)}, which the run has kept")
    else:
        options.run = options.resume


def source_forms(forms: dict[str, str]) -> str:
    """A line for each form of source, such as `macaron_tf.data.sources.names.PAIRS`."""
    width = max(map(len, forms))
    return "".join(f"  {form:{width}}  {text}\n" for form, text in forms.items())


def drawn(options: argparse.Namespace) -> tuple[dict[str, float], int]:
    """The sampling and the seed of `DRAWING`; refuses one that nothing reads."""
    values = {"top_k": 0, "top_p": 1.0, "seed": 1}
    given = {name: vars(options)[name] for name in values if vars(options)[name] is not None}
    if given and not options.temperature:
        flag = next(iter(given)).replace("_", "-")
        raise UserError(f"--{flag} is of draws: leave it out, or give a --temperature above 0")
    values |= given
    return values, values.pop("seed")


def unless_resumed(*parts: Part) -> Part:
    """The arguments that a training starts from, or `--resume RUN`, which knows them."""

    def add(parser: argparse.ArgumentParser) -> None:
        starts = together(*parts)(parser)
        needed = [action.dest for action in starts if action.required]
        for action in starts:
            action.required = False
            if not action.option_strings:
                action.nargs = "?"
        text = "go on with a run, by the recipe that it keeps, and nothing else of these"
        place("--resume RUN", text)(parser)
        parser.set_defaults(parser=parser, starts=starts, needed=needed)

    return add


def recipe(examples: str) -> Part:
    """The argument RECIPE, its data and its `--set`, with examples of settings."""
    return together(RECIPE, TFDS, settings(examples))


def recipe_to_train(examples: str, *more: Part) -> Part:
    """The arguments RECIPE, RUN and `more`, or `--resume RUN`; and as `recipe`."""
    return together(unless_resumed(RECIPE, RUN_TO_TRAIN, *more), TFDS, settings(examples))


def recipes(kind: str) -> Command:
    """The command `recipes [NAME]`, of the recipes of a class, `module:class`."""
    return command(
        "recipes",
        "list the recipes, or print one as a file to start from",
        "experiments.registry:run",
        local_place("name", "a recipe", nargs="?"),
        lambda parser: parser.set_defaults(kind=kind),
    )


def settings_of(kind: str) -> Command:
    """The command `settings RECIPE [WORD ...]`, of the recipes of a class, `module:class`."""
    text = "a recipe's name, which `recipes` lists, or a function of your own"
    start = local_place("recipe", text)
    run = "experiments.registry:run_settings"
    return settings_by(run, start, lambda parser: parser.set_defaults(kind=kind))


def settings_by(run: str, start: Part, *parts: Part) -> Command:
    """The command `settings`, whose recipe a function makes of `start` and other arguments."""
    return command(
        "settings",
        "every setting of a recipe: its path and value, its range and its meaning",
        run,
        start,
        argument("words WORD", "settings with one of these words only", nargs="*"),
        settings("model=NAME, for the settings of another model"),
        *parts,
    )


def finetuning(*tasks: str) -> Part:
    """`--tasks` that runs are fine-tuned on, their examples, and `--finetune-set`."""
    text = f"tasks of fine-tuning (default: {' '.join(tasks) or 'none'})"
    return together(
        argument("--tasks", text, nargs="+", default=list(tasks)),
        place("--source", "examples of the one task, such as tsv:FILE"),
        settings("epochs=1, of every fine-tuning", "--finetune-set"),
    )


JSON = switch("--json", "JSON, an answer a line, as Python's `predict` and a server give it")
RECIPE = local_place(
    "recipe",
    "name of a recipe, which `recipes` lists; or a function of your own that makes one: "
    "FILE.py[:NAME] or package.module:NAME",
)
DATA_DIR = place("--data-dir DIR", "TensorFlow Datasets' folder; a run keeps it")
STUDY = together(
    local_place("out", "folder of runs and results"),
    count("--seeds N", "default 1 2 3", [1, 2, 3], least=0, nargs="+", action=Distinct),
)
TFDS = together(
    DATA_DIR,
    switch("--download", "let TensorFlow Datasets download what is missing"),
    lambda parser: parser.set_defaults(uses_tfds=True),
)
EXAMPLES = together(place("--source", "examples; the task's (or the run's) own by default"), TFDS)
RUN = place("run", "folder of the run")
TRAINED = together(RUN, checkpoint())
RUN_TO_TRAIN = place("run", "folder of the run; made, or resumed where it exists")
VOCABULARY = place("--vocabulary DIR", "use this vocabulary instead of training one")
LOWER_CASE = yes_or_no(
    "--lower-case", "whether another library's model lower-cases, where its files do not say"
)
INIT_NONE = together(
    argument("--model NAME", "of the model catalog, with --init none"),
    place("--vocabulary DIR", "a vocabulary, with --init none"),
    LOWER_CASE,
)
DRAWING = together(
    count("--top-k K", "of the K likeliest", least=0),
    count("--top-p P", "of the likeliest that make up P", least=0.0),
    count("--seed", "same seed, same draws (default 1)", least=0),
)
DEVICES = together(
    group(
        "devices",
        argument(
            "--strategy",
            "mirrored: all of this machine's GPUs; multi_worker: this process and the others that "
            "TF_CONFIG names, with --engine jax also a TPU slice or a SLURM job; by default the "
            "first GPU, or the CPU without one",
            choices=STRATEGIES,
        ),
        count(
            "--replicas N", "with mirrored: N devices; without a GPU N parts of the CPU (default 2)"
        ),
        argument("--tpu NAME", "with tpu: its name, or local on a TPU VM (default local)"),
        text="batches are the same on any number of devices; results too, without dropout",
    ),
    lambda parser: parser.set_defaults(uses_devices=True),
)
ENGINE = group(
    "engine",
    argument(
        "--engine",
        "Keras's backend for the training, tensorflow by default; checkpoints are the same, "
        "and either engine goes on with the other's runs",
        choices=ENGINES,
    ),
    argument(
        "--mesh AXES",
        "with jax: devices along each axis, such as data=4,model=2: data deals out the rows "
        "of batches, model cuts the weights (default data=1, one device; with --strategy "
        "multi_worker all devices of all processes along data)",
    ),
)
CALLBACKS = together(
    group(
        "watching",
        argument(
            "--callback MODULE:CLASS",
            "a Keras callback of your own, or of W&B or MLflow; with arguments "
            "'MODULE:CLASS(key=value)'; may be repeated",
            action="append",
        ),
        argument("--profile START:STOP", "trace these updates for TensorBoard, into RUN"),
    ),
    lambda parser: parser.set_defaults(uses_callbacks=True),
)
TRAINING_DEVICES = together(DEVICES, ENGINE)
DATA_SERVICE = argument(
    "--data-service HOST:PORT",
    "have the batches made by `python -m experiments.data_service` elsewhere; several, with "
    "commas, are dealt to the workers",
)
