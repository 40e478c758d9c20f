"""Command-line arguments that several commands share, and checks that run before a command."""

import argparse
import functools
import os
import sys
import textwrap
from collections.abc import Sequence

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
    local_path_argument,
    path_argument,
    settings,
    switch,
    together,
    yes_or_no,
)
from macaron_tf.errors import UserError, check_packages, needed
from macaron_tf.plug_ins import find_sources

# A copy of macaron_tf.distribution.STRATEGIES, because importing that module loads TensorFlow.
STRATEGIES = ("cpu", "one_gpu", "mirrored", "multi_worker", "tpu")
ENGINES = ("tensorflow", "jax")


def _prepare(options: argparse.Namespace) -> None:
    """Checks the arguments that several commands share, and sets derived attributes of `options`.

    A command with the arguments `TFDS` gets `options.tfds`, a `Tfds`. A command with `DEVICES` gets
    `options.devices`, a `tf.distribute.Strategy`. A command with `CALLBACKS` gets
    `options.callbacks`, a `Callbacks`, or `None` if neither `--callback` nor `--profile` is set.
    """
    values = vars(options)
    if extra := values.get("extra"):
        check_packages(extra)
    engine, mesh = values.get("engine"), values.get("mesh")
    if engine or mesh:
        _choose_engine(options)
    if values.get("new_run_actions"):
        _check_start(options)
    if "checkpoint" in values and "run" in values:
        _split_checkpoint(options)
    if values.get("uses_tfds"):
        from experiments.run import saved_data_dir
        from macaron_tf.data.sources.tfds import Tfds
        from macaron_tf.loading import locate

        if options.data_dir is None:
            locations = (values.get("run"), values.get("encoder"), *values.get("runs", ()))
            folders = (saved_data_dir(locate(one).folder) for one in locations if one)
            options.data_dir = next(filter(None, folders), None)
        options.tfds = Tfds(options.data_dir, options.download, options.trust_code)
    if values.get("uses_devices"):
        from macaron_tf.distribution import make_strategy

        # With JAX, TensorFlow only reads the data and must not reserve GPUs.
        strategy = "cpu" if engine == "jax" else options.strategy
        options.devices = make_strategy(strategy, options.tpu, options.replicas)
        if engine == "jax":
            from macaron_tf.distribution.mesh import parse_mesh, use_mesh

            if options.strategy:
                _join_workers()
            use_mesh(mesh and parse_mesh(mesh))
    if values.get("uses_callbacks"):
        options.callbacks = None
        if options.callback or options.profile:
            from macaron_tf.training.callbacks import Callbacks

            options.callbacks = Callbacks.parse(options.callback or (), options.profile)
    find_sources(values.get("source"))


program = functools.partial(arguments.program, prepare=_prepare)
single_program = functools.partial(arguments.single_program, prepare=_prepare)


def _choose_engine(options: argparse.Namespace) -> None:
    """Selects the Keras backend by setting KERAS_BACKEND, which Keras reads at its first import.

    Raises:
        UserError: an option such as `--tpu` does not work with the backend, JAX is not installed,
            or Keras is already imported with another backend.
    """
    device_flags = [name for name in ("strategy", "tpu", "replicas") if vars(options).get(name)]
    if options.engine == "jax":
        if device_flags and options.strategy != "multi_worker":
            raise UserError(
                f"--{device_flags[0]} {vars(options)[device_flags[0]]} works only with --engine "
                f"tensorflow: leave --{device_flags[0]} out, or choose JAX's devices with --mesh "
                "or with --strategy multi_worker"
            )
        with needed("--engine jax"):
            import jax  # noqa: F401
    elif options.mesh:
        raise UserError(
            f"--mesh {options.mesh} needs --engine jax: add --engine jax, or leave --mesh out"
        )
    if "keras" in sys.modules and sys.modules["keras"].backend.backend() != options.engine:
        raise UserError(
            f"--engine {options.engine} cannot be selected, because this process has already "
            "imported Keras with another backend: set the environment variable "
            f"KERAS_BACKEND={options.engine} before the process starts"
        )
    os.environ["KERAS_BACKEND"] = options.engine


def _join_workers() -> None:
    """Connects JAX to the other processes of the training run.

    The environment variable TF_CONFIG lists the processes. Without TF_CONFIG, JAX detects the
    cluster, such as a TPU slice or a SLURM job.
    """
    from macaron_tf.distribution import read_cluster
    from macaron_tf.distribution.hosts import join_hosts

    join_hosts(*(read_cluster() if os.environ.get("TF_CONFIG") else ()))


def _split_checkpoint(options: argparse.Namespace) -> None:
    """Splits RUN@CHECKPOINT into `options.run` and `options.checkpoint`.

    Raises:
        UserError: `--checkpoint` is set, but `options.run` names a checkpoint already or is not a
            run.
    """
    if not options.checkpoint and "@" not in (options.run or ""):
        return
    from macaron_tf.loading import locate

    location = locate(options.run)
    if options.checkpoint and (location.checkpoint or location.without_recipe):
        predicate = (
            "names a checkpoint already"
            if location.checkpoint
            else "is not a run with checkpoints, but a single set of weights"
        )
        raise UserError(f"{options.run} {predicate}: leave --checkpoint {options.checkpoint} out")
    if location.checkpoint:
        options.run, options.checkpoint = str(location.folder), location.checkpoint


def _check_start(options: argparse.Namespace) -> None:
    """Checks that the command line describes a new run or names a run to resume, but not both.

    With `--resume`, the function sets `options.run` to the resumed run. See `unless_resumed`.
    """
    actions = options.new_run_actions
    names = {action.dest: (action.option_strings or [action.dest])[0] for action in actions}
    given_names = [name for dest, name in names.items() if vars(options)[dest] is not None]
    missing = [names[dest] for dest in options.new_run_required if vars(options)[dest] is None]
    if options.resume is None:
        if missing:
            options.parser.error(
                f"the following arguments are required: {', '.join(missing)}. To continue a run, "
                "give --resume RUN instead"
            )
    elif given_names:
        raise UserError(
            f"--resume cannot be combined with {', '.join(given_names)}, because the run has saved "
            f"its own values: leave out {', '.join(given_names)}"
        )
    else:
        options.run = options.resume


def source_forms(forms: dict[str, str]) -> str:
    """Formats a table for `--help` that explains the forms of a data source.

    Args:
        forms: dict mapping a form, such as "tsv:FILE", to its description.
    """
    width = max(map(len, forms))
    fill = functools.partial(textwrap.fill, width=100, break_on_hyphens=False)
    lines = (
        fill(text, initial_indent=f"  {form:{width}}  ", subsequent_indent=" " * (width + 4))
        for form, text in forms.items()
    )
    return "".join(f"{line}\n" for line in lines)


def sampling_settings(options: argparse.Namespace) -> tuple[dict[str, float], int]:
    """Returns a pair: a dict of the sampling settings `top_k` and `top_p`, and the random seed.

    Raises:
        UserError: a flag of `SAMPLING` is set, but the temperature is 0 or not set, so the command
            does not sample.
    """
    values = {"top_k": 0, "top_p": 1.0, "seed": 1}
    changed = {name: vars(options)[name] for name in values if vars(options)[name] is not None}
    if changed and not options.temperature:
        flag = next(iter(changed)).replace("_", "-")
        raise UserError(
            f"--{flag} applies only to sampling, which needs a temperature greater than 0: leave "
            f"--{flag} out, or set --temperature to a number greater than 0"
        )
    values |= changed
    return values, values.pop("seed")


def unless_resumed(*parts: Part) -> Part:
    """Makes the arguments of `parts`, and the alternative flag `--resume RUN`.

    The arguments of `parts` describe a new run. None of them may be given together with `--resume`.
    """

    def add(parser: argparse.ArgumentParser) -> None:
        actions = together(*parts)(parser)
        required = [action.dest for action in actions if action.required]
        for action in actions:
            action.required = False
            if not action.option_strings:
                action.nargs = "?"
        names = [(action.option_strings or [action.dest])[0] for action in actions]
        listing = f"{', '.join(names[:-1])} and {names[-1]}"
        text = (
            f"folder of a run to resume with its saved recipe; give --resume instead of {listing}"
        )
        path_argument("--resume RUN", text)(parser)
        defaults = {"new_run_actions": actions, "new_run_required": required, "extra": "train"}
        parser.set_defaults(parser=parser, **defaults)

    return add


def extra(name: str) -> Part:
    """Makes a command raise an error first if a package of an extra is missing."""
    return lambda parser: parser.set_defaults(extra=name)


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


def recipes(recipe_class: str) -> Command:
    """Makes the command `recipes [NAME]`, which lists recipes, or prints NAME as a Python file.

    Args:
        recipe_class: class of the recipes, as `module:class`.
    """
    return command(
        "recipes",
        "list the recipes, or print a recipe as a Python file to edit",
        "experiments.registry:run",
        local_path_argument(
            "name", "name of the recipe to print (default: list all recipes)", nargs="?"
        ),
        lambda parser: parser.set_defaults(recipe_class=recipe_class),
    )


def settings_of(recipe_class: str) -> Command:
    """Makes the command `settings RECIPE [WORD ...]`, which prints the settings of a recipe.

    With words, the command prints only settings whose path or meaning contains one of the words.

    Args:
        recipe_class: class of the recipes, as `module:class`.
    """
    return settings_by(
        "experiments.registry:run_settings",
        RECIPE,
        lambda parser: parser.set_defaults(recipe_class=recipe_class),
    )


def settings_by(run: str, recipe_argument: Part, *parts: Part) -> Command:
    """Makes the command `settings`, which calls `run` to print the settings of a recipe.

    Args:
        run: function that prints the settings, as `module:function`; it is called with the parsed
            options.
        recipe_argument: argument that names the recipe.
        parts: further arguments that `run` reads.
    """
    return command(
        "settings",
        "list the settings of a recipe with their paths, values, ranges and meanings",
        run,
        recipe_argument,
        argument(
            "words WORD",
            "words to search for; the command lists the settings whose path or meaning contains "
            "one of the words (default: list all settings)",
            nargs="*",
        ),
        settings("model=NAME, before the settings are listed"),
        *parts,
    )


def finetuning(*tasks: str) -> Part:
    """Makes the arguments `--tasks`, `--source` and `--finetune-set` of a study.

    Args:
        tasks: default tasks.
    """
    default = " ".join(tasks) or "no fine-tuning"
    text = f"names of the tasks on which to fine-tune each pre-trained model (default: {default})"
    return together(
        argument("--tasks TASK", text, nargs="+", default=list(tasks)),
        path_argument(
            "--source",
            "source of the task's examples, such as tsv:FILE; allowed only if --tasks names a "
            "single task (default: the task's dataset in TensorFlow Datasets)",
        ),
        settings("epochs=1, in every fine-tuning run", "--finetune-set"),
    )


def _data_dir(parser: argparse.ArgumentParser) -> Sequence[argparse.Action] | None:
    """Adds `--data-dir`. The help mentions a run only if the parser has an argument for runs."""
    default = "the environment variable TFDS_DATA_DIR, or else ~/tensorflow_datasets"
    if any(action.dest in ("run", "runs", "encoder") for action in parser._actions):
        default = f"for an existing run, the folder that it was trained with; otherwise {default}"
    text = f"folder that contains the datasets of TensorFlow Datasets (default: {default})"
    return path_argument("--data-dir DIR", text)(parser)


DATA_DIR: Part = _data_dir
JSON = switch(
    "--json",
    "write the predictions as JSON, one prediction per line, with the fields that the Python "
    "method `Pretrained.predict` returns (default: off)",
)
RECIPE = local_path_argument(
    "recipe",
    "name of a recipe, or your own function that returns a recipe, as FILE.py[:NAME] or "
    "package.module:NAME. The command `recipes` lists the names of all recipes. NAME may be "
    "omitted if the file defines a single function",
)
STUDY = together(
    local_path_argument("out", "output folder for the training runs and the report"),
    count(
        "--seeds N",
        "random seeds; each training run is repeated with every seed (default: 1 2 3)",
        [1, 2, 3],
        minimum=0,
        nargs="+",
        action=Distinct,
    ),
    extra("studies"),
)
TFDS = together(
    DATA_DIR,
    switch(
        "--download",
        "download and prepare datasets that are missing in --data-dir (default: stop with an error "
        "if a dataset is missing)",
    ),
    lambda parser: parser.set_defaults(uses_tfds=True),
)
EXAMPLES = together(
    path_argument(
        "--source",
        "source of the examples, such as tsv:FILE (default: for an existing run, the source that "
        "it was trained on; otherwise the task's dataset in TensorFlow Datasets)",
    ),
    TFDS,
)
RUN = path_argument("run", "folder of the training run")
TRAINED = together(RUN, checkpoint())
RUN_TO_TRAIN = path_argument(
    "run", "folder for the new run; if the folder contains an interrupted run, training resumes"
)
LOWER_CASE = yes_or_no(
    "--lower-case",
    "whether the pre-trained model lower-cases text; required if another library trained the model "
    "and its files do not record this setting, and not allowed otherwise (default: the setting in "
    "the model's files)",
)
INIT_NONE = together(
    argument(
        "--model NAME",
        "name of a model in the catalog, such as bert_base, to train from random weights; required "
        "with --init none, and not allowed otherwise",
    ),
    path_argument(
        "--vocabulary DIR",
        "folder of a saved vocabulary; required with --init none, and otherwise only compared with "
        "the vocabulary of the model in --init (default: the vocabulary of this model)",
    ),
    LOWER_CASE,
)
VOCABULARY = path_argument(
    "--vocabulary DIR",
    "folder of a saved vocabulary to use (default: the vocabulary in the output folder; if there "
    "is none, train a new vocabulary on the corpus)",
)
SAMPLING = together(
    count(
        "--top-k K",
        "number of most probable tokens from which to sample (default: 0, which means all tokens)",
        minimum=0,
    ),
    count(
        "--top-p P",
        "probability mass of nucleus sampling; the model samples from the smallest set of most "
        "probable tokens whose total probability reaches P (default: 1.0, which means all tokens)",
        minimum=0.0,
    ),
    count("--seed", "random seed for sampling (default: 1)", minimum=0),
)
DEVICES = together(
    group(
        "devices",
        argument(
            "--strategy",
            "devices to compute on. 'cpu': the CPU; 'one_gpu': the first GPU; 'mirrored': all GPUs "
            "of this machine; 'multi_worker': the devices of all processes that the environment "
            "variable TF_CONFIG lists; 'tpu': a TPU (default: 'one_gpu', or 'cpu' if there is no "
            "GPU)",
            choices=STRATEGIES,
        ),
        count(
            "--replicas N",
            "number of GPUs for --strategy mirrored; on a machine without GPUs, the number of "
            "virtual CPUs (default: all GPUs, or 2 virtual CPUs)",
        ),
        argument(
            "--tpu NAME",
            "name of the TPU for --strategy tpu (default: 'local', which means the TPU of this TPU "
            "VM)",
        ),
        text="The batches do not depend on the number of devices. Without dropout, the results "
        "with any number of devices are the same up to rounding.",
    ),
    lambda parser: parser.set_defaults(uses_devices=True),
)
ENGINE = group(
    "engine",
    argument(
        "--engine",
        "Keras backend for training. A run can be resumed with the other backend, because both "
        "backends write the same checkpoints. With 'jax', --strategy multi_worker also detects the "
        "processes of a TPU slice or a SLURM job (default: 'tensorflow')",
        choices=ENGINES,
    ),
    argument(
        "--mesh AXES",
        "device mesh for --engine jax, as the number of devices along each axis, such as "
        "data=4,model=2; the axis 'data' splits batches, and the axis 'model' splits weights "
        "(default: data=1; with --strategy multi_worker, data=N for the N devices of all "
        "processes)",
    ),
)
CALLBACKS = together(
    group(
        "callbacks and profiling",
        argument(
            "--callback MODULE:CLASS",
            "Keras callback to add, such as your own class or a class of W&B or MLflow; "
            "'MODULE:CLASS(key=value)' passes arguments to the class (repeatable)",
            action="append",
        ),
        argument(
            "--profile START:STOP",
            "numbers of the first and the last update to profile, such as 10:14. The trace is "
            "written to RUN/tensorboard, for TensorBoard (default: no profile)",
        ),
    ),
    lambda parser: parser.set_defaults(uses_callbacks=True),
)
TRAINING_DEVICES = together(DEVICES, ENGINE)
