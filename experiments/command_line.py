"""Command-line arguments that several commands share, and checks that run before a command."""

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

# A copy of macaron_tf.distribution.STRATEGIES, because importing that module loads TensorFlow.
STRATEGIES = ("cpu", "one_gpu", "mirrored", "multi_worker", "tpu")
ENGINES = ("tensorflow", "jax")


def _prepare(options: argparse.Namespace, is_process: bool) -> None:
    """Checks the shared arguments, and adds the objects that commands need to `options`.

    A command with the arguments `TFDS` gets `options.tfds`, a `Tfds`. A command with `DEVICES` gets
    `options.devices`, a `tf.distribute.Strategy`. A command with `CALLBACKS` gets
    `options.callbacks`, which is a `Callbacks` or `None`.

    Args:
        options: parsed options of the command.
        is_process: whether the options come from the command line of this process.
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

        # With JAX, TensorFlow only reads the data and must not reserve GPUs.
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
    """Selects the Keras backend by setting KERAS_BACKEND, which Keras reads at its first import.

    Raises:
        UserError: the options do not fit the backend, JAX is not installed, or Keras is already
            imported with another backend.
    """
    others = [name for name in ("strategy", "tpu", "replicas") if vars(options).get(name)]
    if options.engine == "jax":
        if others and options.strategy != "multi_worker":
            raise UserError(
                f"--{others[0]} works only with --engine tensorflow: leave it out; with jax, "
                "--mesh and --strategy multi_worker choose the devices"
            )
        with needed("--engine jax"):
            import jax  # noqa: F401
    elif options.mesh:
        raise UserError(
            f"--mesh {options.mesh} needs --engine jax: add --engine jax, or leave --mesh out"
        )
    if "keras" in sys.modules and sys.modules["keras"].backend.backend() != options.engine:
        raise UserError(
            f"--engine {options.engine} comes too late, because this process has already imported "
            f"Keras with another backend: start it with KERAS_BACKEND={options.engine}"
        )
    os.environ["KERAS_BACKEND"] = options.engine


def _join_workers() -> None:
    """Connects JAX to the processes in TF_CONFIG or, without TF_CONFIG, in a detected cluster."""
    from macaron_tf.distribution import read_cluster
    from macaron_tf.distribution.hosts import join_hosts

    join_hosts(*(read_cluster() if os.environ.get("TF_CONFIG") else ()))


def _name_checkpoint(options: argparse.Namespace) -> None:
    """Splits RUN@CHECKPOINT into `options.run` and `options.checkpoint`.

    Raises:
        UserError: `--checkpoint` is set, but `options.run` names a checkpoint already or is not a
            run.
    """
    if not options.checkpoint and "@" not in (options.run or ""):
        return
    from macaron_tf.places import locate

    found = locate(options.run)
    if options.checkpoint and (found.checkpoint or found.without_recipe):
        has = (
            "names a checkpoint already"
            if found.checkpoint
            else "is not a run with checkpoints, but a single set of weights"
        )
        raise UserError(f"{options.run} {has}: leave --checkpoint {options.checkpoint} out")
    if found.checkpoint:
        options.run, options.checkpoint = str(found.folder), found.checkpoint


def _check_start(options: argparse.Namespace) -> None:
    """Checks that the command line describes a new run or names a run to resume, but not both.

    With `--resume`, the function sets `options.run` to the resumed run. See `unless_resumed`.
    """
    names = {action.dest: (action.option_strings or [action.dest])[0] for action in options.starts}
    given = [name for dest, name in names.items() if vars(options)[dest] is not None]
    missing = [names[dest] for dest in options.needed if vars(options)[dest] is None]
    if options.resume is None:
        if missing:
            needed = ", ".join(missing)
            options.parser.error(f"the following arguments are required: {needed}; or --resume RUN")
    elif given:
        raise UserError(
            f"--resume cannot be combined with {', '.join(given)}, because the run has saved its "
            "own values: leave these arguments out"
        )
    else:
        options.run = options.resume


def source_forms(forms: dict[str, str]) -> str:
    """Formats a table of source forms for `--help`.

    Args:
        forms: dict from a form, such as "tsv:FILE", to its description.
    """
    width = max(map(len, forms))
    return "".join(f"  {form:{width}}  {text}\n" for form, text in forms.items())


def drawn(options: argparse.Namespace) -> tuple[dict[str, float], int]:
    """Returns a dict with the sampling settings `top_k` and `top_p`, and the random seed.

    Raises:
        UserError: a flag of `DRAWING` is set, but the temperature is 0, which turns sampling off.
    """
    values = {"top_k": 0, "top_p": 1.0, "seed": 1}
    given = {name: vars(options)[name] for name in values if vars(options)[name] is not None}
    if given and not options.temperature:
        flag = next(iter(given)).replace("_", "-")
        raise UserError(
            f"--{flag} has an effect on sampling only: leave --{flag} out, or give a --temperature "
            "greater than 0"
        )
    values |= given
    return values, values.pop("seed")


def unless_resumed(*parts: Part) -> Part:
    """Makes the arguments `parts` of a new run, and `--resume RUN`, which replaces all `parts`."""

    def add(parser: argparse.ArgumentParser) -> None:
        starts = together(*parts)(parser)
        needed = [action.dest for action in starts if action.required]
        for action in starts:
            action.required = False
            if not action.option_strings:
                action.nargs = "?"
        text = "folder of a run to resume with its saved recipe; replaces the arguments above"
        place("--resume RUN", text)(parser)
        parser.set_defaults(parser=parser, starts=starts, needed=needed)

    return add


def recipe(examples: str) -> Part:
    """Makes the arguments RECIPE, `--data-dir`, `--download` and `--set`.

    Args:
        examples: settings that the help of `--set` shows as examples.
    """
    return together(RECIPE, TFDS, settings(examples))


def recipe_to_train(examples: str, *more: Part) -> Part:
    """Makes the arguments of a command that trains a recipe or resumes a run.

    Args:
        examples: settings that the help of `--set` shows as examples.
        more: further arguments that describe a new run.
    """
    return together(unless_resumed(RECIPE, RUN_TO_TRAIN, *more), TFDS, settings(examples))


def recipes(kind: str) -> Command:
    """Makes the command `recipes [NAME]`, which lists recipes or prints the recipe NAME.

    Args:
        kind: class of the recipes, as `module:class`.
    """
    return command(
        "recipes",
        "list the recipes, or print a recipe as a Python file to edit",
        "experiments.registry:run",
        local_place("name", "recipe to print (default: list all recipes)", nargs="?"),
        lambda parser: parser.set_defaults(kind=kind),
    )


def settings_of(kind: str) -> Command:
    """Makes the command `settings RECIPE [WORD ...]`, which prints the settings of a recipe.

    Args:
        kind: class of the recipes, as `module:class`.
    """
    text = "name of a recipe (`recipes` lists them), or your own function that returns a recipe"
    start = local_place("recipe", text)
    run = "experiments.registry:run_settings"
    return settings_by(run, start, lambda parser: parser.set_defaults(kind=kind))


def settings_by(run: str, start: Part, *parts: Part) -> Command:
    """Makes the command `settings`, which prints settings by calling `run`.

    Args:
        run: function that prints the settings, as `module:function`; it is called with the parsed
            options.
        start: argument that names the recipe.
        parts: further arguments that `run` reads.
    """
    return command(
        "settings",
        "list the settings of a recipe with their paths, values, ranges and meanings",
        run,
        start,
        argument(
            "words WORD",
            "words to look for in paths and meanings (default: list all settings)",
            nargs="*",
        ),
        settings("model=NAME to list the settings of another model"),
        *parts,
    )


def finetuning(*tasks: str) -> Part:
    """Makes the arguments `--tasks`, `--source` and `--finetune-set` of a study.

    Args:
        tasks: default tasks.
    """
    text = f"tasks to fine-tune the runs on (default: {' '.join(tasks) or 'none'})"
    return together(
        argument("--tasks", text, nargs="+", default=list(tasks)),
        place(
            "--source",
            "source of the examples, such as tsv:FILE, if --tasks names a single task "
            "(default: the task's own source)",
        ),
        settings("epochs=1, in every fine-tuning run", "--finetune-set"),
    )


JSON = switch(
    "--json", "write each answer as a line of JSON, with the output of `Pretrained.predict`"
)
RECIPE = local_place(
    "recipe",
    "name of a recipe (`recipes` lists them), or your own function that returns a recipe, as "
    "FILE.py[:NAME] or package.module:NAME",
)
DATA_DIR = place(
    "--data-dir DIR",
    "folder of TensorFlow Datasets (default: the folder that the run was trained with, or else "
    "TFDS_DATA_DIR or ~/tensorflow_datasets)",
)
STUDY = together(
    local_place("out", "folder for the runs and results"),
    count(
        "--seeds N",
        "random seeds; each seed gets a run of its own (default: 1 2 3)",
        [1, 2, 3],
        least=0,
        nargs="+",
        action=Distinct,
    ),
)
TFDS = together(
    DATA_DIR,
    switch("--download", "download data sets that are missing in the folder of --data-dir"),
    lambda parser: parser.set_defaults(uses_tfds=True),
)
EXAMPLES = together(
    place(
        "--source",
        "source of the examples (default: the source of the run or, for a new run, of the task)",
    ),
    TFDS,
)
RUN = place("run", "folder of the run")
TRAINED = together(RUN, checkpoint())
RUN_TO_TRAIN = place("run", "folder for the run; if it holds a run already, that run is resumed")
VOCABULARY = place("--vocabulary DIR", "folder of the vocabulary (default: train a vocabulary)")
LOWER_CASE = yes_or_no(
    "--lower-case",
    "whether the model lower-cases text; needed only for another library's files without this "
    "information",
)
INIT_NONE = together(
    argument("--model NAME", "name of a model in the catalog; required with --init none"),
    place("--vocabulary DIR", "folder of the vocabulary; required with --init none"),
    LOWER_CASE,
)
DRAWING = together(
    count(
        "--top-k K",
        "number of most probable tokens to sample from (default: 0, which means all tokens)",
        least=0,
    ),
    count(
        "--top-p P",
        "total probability of the most probable tokens to sample from (default: 1.0, which means "
        "all tokens)",
        least=0.0,
    ),
    count("--seed", "random seed of sampling (default: 1)", least=0),
)
DEVICES = together(
    group(
        "devices",
        argument(
            "--strategy",
            "devices to compute on; mirrored means all GPUs of this machine, and multi_worker "
            "means all processes in TF_CONFIG or, with --engine jax, in a TPU slice or a SLURM "
            "job (default: the first GPU, or the CPU if there is no GPU)",
            choices=STRATEGIES,
        ),
        count(
            "--replicas N",
            "number of devices for --strategy mirrored (default: all GPUs, or 2 virtual CPUs if "
            "there is no GPU)",
        ),
        argument(
            "--tpu NAME",
            "name of the TPU for --strategy tpu (default: local, the TPU of this TPU VM)",
        ),
        text="The number of devices does not change the batches and, without dropout, does not "
        "change the results.",
    ),
    lambda parser: parser.set_defaults(uses_devices=True),
)
ENGINE = group(
    "engine",
    argument(
        "--engine",
        "Keras backend for training (default: tensorflow); checkpoints have the same format, so "
        "each backend can resume runs of the other",
        choices=ENGINES,
    ),
    argument(
        "--mesh AXES",
        "number of devices along each axis, such as data=4,model=2, for --engine jax; the axis "
        "data splits batches, and the axis model splits weights (default: data=1; with --strategy "
        "multi_worker, all devices of all processes along data)",
    ),
)
CALLBACKS = together(
    group(
        "watching",
        argument(
            "--callback MODULE:CLASS",
            "Keras callback class, such as your own or a class of W&B or MLflow; "
            "'MODULE:CLASS(key=value)' passes arguments; may be repeated",
            action="append",
        ),
        argument(
            "--profile START:STOP",
            "first and last update to profile; TensorBoard shows the trace in RUN/tensorboard",
        ),
    ),
    lambda parser: parser.set_defaults(uses_callbacks=True),
)
TRAINING_DEVICES = together(DEVICES, ENGINE)
DATA_SERVICE = argument(
    "--data-service HOST:PORT",
    "address of `python -m experiments.data_service`, which then makes the batches; several "
    "addresses, separated by commas, are distributed among the workers",
)
