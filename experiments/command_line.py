"""Arguments that several commands share, and their evaluation before a command runs."""

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
    """Adds the values that a command's shared arguments stand for to its options.

    Commands with `TFDS` get `options.tfds`. Commands with `DEVICES` get `options.devices`, a
    `tf.distribute.Strategy`. Commands with `CALLBACKS` get `options.callbacks`, `Callbacks` or
    None.
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

        # With JAX, TensorFlow only reads the data and must leave the GPUs to JAX.
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
    """Sets KERAS_BACKEND, which Keras reads at its first import."""
    others = [name for name in ("strategy", "tpu", "replicas") if vars(options).get(name)]
    if options.engine == "jax":
        if others and options.strategy != "multi_worker":
            raise UserError(
                f"--{others[0]} works with --engine tensorflow only: with jax give --mesh, "
                "--strategy multi_worker or neither"
            )
        with needed("--engine jax"):
            import jax  # noqa: F401
    elif options.mesh:
        raise UserError(
            f"--mesh {options.mesh} needs --engine jax: give that too, or leave --mesh out"
        )
    if "keras" in sys.modules and sys.modules["keras"].backend.backend() != options.engine:
        raise UserError(
            f"--engine {options.engine} comes too late, because Keras is already imported with "
            f"another backend: start the process with KERAS_BACKEND={options.engine}"
        )
    os.environ["KERAS_BACKEND"] = options.engine


def _join_workers() -> None:
    """Joins the other processes: those that TF_CONFIG names, or else the cluster JAX detects."""
    from macaron_tf.distribution import read_cluster
    from macaron_tf.distribution.hosts import join_hosts

    join_hosts(*(read_cluster() if os.environ.get("TF_CONFIG") else ()))


def _name_checkpoint(options: argparse.Namespace) -> None:
    """Splits RUN@CHECKPOINT; raises if the place cannot have a checkpoint of that name."""
    if not options.checkpoint and "@" not in (options.run or ""):
        return
    from macaron_tf.places import locate

    found = locate(options.run)
    if options.checkpoint and (found.checkpoint or found.without_recipe):
        has = (
            "names a checkpoint" if found.checkpoint else "is not a run: it has one set of weights"
        )
        raise UserError(f"{options.run} {has}: leave --checkpoint {options.checkpoint} out")
    if found.checkpoint:
        options.run, options.checkpoint = str(found.folder), found.checkpoint


def _check_start(options: argparse.Namespace) -> None:
    """Checks the arguments of `unless_resumed`; with `--resume`, sets `options.run` to it."""
    names = {action.dest: (action.option_strings or [action.dest])[0] for action in options.starts}
    given = [name for dest, name in names.items() if vars(options)[dest] is not None]
    missing = [names[dest] for dest in options.needed if vars(options)[dest] is None]
    if options.resume is None:
        if missing:
            needed = ", ".join(missing)
            options.parser.error(f"the following arguments are required: {needed}; or --resume RUN")
    elif given:
        raise UserError(f"--resume: leave out {', '.join(given)}, which the run has saved")
    else:
        options.run = options.resume


def source_forms(forms: dict[str, str]) -> str:
    """Formats forms of sources, such as `macaron_tf.data.sources.names.PAIRS`, for `--help`."""
    width = max(map(len, forms))
    return "".join(f"  {form:{width}}  {text}\n" for form, text in forms.items())


def drawn(options: argparse.Namespace) -> tuple[dict[str, float], int]:
    """Returns the sampling settings and the seed of `DRAWING`; raises if they have no effect."""
    values = {"top_k": 0, "top_p": 1.0, "seed": 1}
    given = {name: vars(options)[name] for name in values if vars(options)[name] is not None}
    if given and not options.temperature:
        flag = next(iter(given)).replace("_", "-")
        raise UserError(
            f"--{flag} has an effect on sampling only: leave it out, or give a --temperature "
            "above 0"
        )
    values |= given
    return values, values.pop("seed")


def unless_resumed(*parts: Part) -> Part:
    """The arguments that describe a new run, or `--resume RUN` instead of all of them."""

    def add(parser: argparse.ArgumentParser) -> None:
        starts = together(*parts)(parser)
        needed = [action.dest for action in starts if action.required]
        for action in starts:
            action.required = False
            if not action.option_strings:
                action.nargs = "?"
        text = "continue this run with the recipe saved in it, instead of the arguments above"
        place("--resume RUN", text)(parser)
        parser.set_defaults(parser=parser, starts=starts, needed=needed)

    return add


def recipe(examples: str) -> Part:
    """The arguments RECIPE, `TFDS` and `--set`, whose help quotes `examples`."""
    return together(RECIPE, TFDS, settings(examples))


def recipe_to_train(examples: str, *more: Part) -> Part:
    """The arguments RECIPE, RUN and `more`, or `--resume RUN` instead; then `TFDS` and `--set`."""
    return together(unless_resumed(RECIPE, RUN_TO_TRAIN, *more), TFDS, settings(examples))


def recipes(kind: str) -> Command:
    """The command `recipes [NAME]` for recipes of the class `kind`, given as `module:class`."""
    return command(
        "recipes",
        "list the recipes, or print one as a file to start from",
        "experiments.registry:run",
        local_place("name", "a recipe", nargs="?"),
        lambda parser: parser.set_defaults(kind=kind),
    )


def settings_of(kind: str) -> Command:
    """The command `settings RECIPE [WORD ...]` for recipes of the class `kind`, `module:class`."""
    text = "name of a recipe, which `recipes` lists, or a function of your own"
    start = local_place("recipe", text)
    run = "experiments.registry:run_settings"
    return settings_by(run, start, lambda parser: parser.set_defaults(kind=kind))


def settings_by(run: str, start: Part, *parts: Part) -> Command:
    """The command `settings`, run by the function `run`.

    Args:
        run: function of the options that prints the settings, as `module:function`.
        start: argument that names the recipe.
        parts: further arguments that `run` reads.
    """
    return command(
        "settings",
        "list every setting of a recipe with its path, value, range and meaning",
        run,
        start,
        argument("words WORD", "list only settings that contain one of these words", nargs="*"),
        settings("model=NAME, for the settings of another model"),
        *parts,
    )


def finetuning(*tasks: str) -> Part:
    """The arguments of fine-tuning in a study: `--tasks`, `--source` and `--finetune-set`."""
    text = f"tasks to fine-tune the runs on (default: {' '.join(tasks) or 'none'})"
    return together(
        argument("--tasks", text, nargs="+", default=list(tasks)),
        place("--source", "examples of the task, such as tsv:FILE, if there is one task only"),
        settings("epochs=1, for every fine-tuning", "--finetune-set"),
    )


JSON = switch("--json", "print each answer as a line of JSON, in the form of `Pretrained.predict`")
RECIPE = local_place(
    "recipe",
    "name of a recipe, which `recipes` lists, or a function of your own that returns one: "
    "FILE.py[:NAME] or package.module:NAME",
)
DATA_DIR = place("--data-dir DIR", "folder of TensorFlow Datasets; a run remembers it")
STUDY = together(
    local_place("out", "folder of the runs and results"),
    count(
        "--seeds N",
        "seeds of the runs (default 1 2 3)",
        [1, 2, 3],
        least=0,
        nargs="+",
        action=Distinct,
    ),
)
TFDS = together(
    DATA_DIR,
    switch("--download", "let TensorFlow Datasets download missing data sets"),
    lambda parser: parser.set_defaults(uses_tfds=True),
)
EXAMPLES = together(
    place("--source", "source of the examples (default: that of the run, or of the task)"), TFDS
)
RUN = place("run", "folder of the run")
TRAINED = together(RUN, checkpoint())
RUN_TO_TRAIN = place("run", "folder of the run; a run that exists there is resumed")
VOCABULARY = place("--vocabulary DIR", "use this vocabulary instead of training one")
LOWER_CASE = yes_or_no(
    "--lower-case",
    "whether another library's model lower-cases text, if its files do not tell",
)
INIT_NONE = together(
    argument("--model NAME", "name in the model catalog, with --init none"),
    place("--vocabulary DIR", "folder of the vocabulary, with --init none"),
    LOWER_CASE,
)
DRAWING = together(
    count("--top-k K", "sample from the K most probable tokens; 0: from all", least=0),
    count("--top-p P", "sample from the most probable tokens that make up P", least=0.0),
    count("--seed", "seed of the sampling (default 1)", least=0),
)
DEVICES = together(
    group(
        "devices",
        argument(
            "--strategy",
            "devices to compute on. mirrored: all GPUs of this machine; multi_worker: this process "
            "and the others that TF_CONFIG names, with --engine jax also a TPU slice or a SLURM "
            "job (default: the first GPU, or the CPU if there is none)",
            choices=STRATEGIES,
        ),
        count(
            "--replicas N",
            "with mirrored: number of devices, or, without a GPU, of virtual CPUs (default 2)",
        ),
        argument("--tpu NAME", "with tpu: name of the TPU; local on a TPU VM (default local)"),
        text="any number of devices sees the same batches, and without dropout gives the same "
        "results",
    ),
    lambda parser: parser.set_defaults(uses_devices=True),
)
ENGINE = group(
    "engine",
    argument(
        "--engine",
        "backend of Keras for the training (default tensorflow); both write the same checkpoints, "
        "and each can resume the other's runs",
        choices=ENGINES,
    ),
    argument(
        "--mesh AXES",
        "with jax: number of devices along each axis, such as data=4,model=2; data splits the "
        "batches, model splits the weights (default data=1, one device; with --strategy "
        "multi_worker all devices of all processes along data)",
    ),
)
CALLBACKS = together(
    group(
        "watching",
        argument(
            "--callback MODULE:CLASS",
            "Keras callback, such as your own or that of W&B or MLflow; with arguments: "
            "'MODULE:CLASS(key=value)'; may be repeated",
            action="append",
        ),
        argument("--profile START:STOP", "trace these updates for TensorBoard, in RUN"),
    ),
    lambda parser: parser.set_defaults(uses_callbacks=True),
)
TRAINING_DEVICES = together(DEVICES, ENGINE)
DATA_SERVICE = argument(
    "--data-service HOST:PORT",
    "address of a `python -m experiments.data_service` that makes the batches; several addresses, "
    "separated by commas, are shared out among the workers",
)
