"""Command-line arguments that several commands share, and checks that run before a command."""

import argparse
import functools
import os
import sys

from macaron_tf.cli import arguments
from macaron_tf.cli.arguments import (
    Distinct,
    Part,
    argument,
    count,
    group,
    local_path_argument,
    path_argument,
    settings,
    switch,
    together,
)
from macaron_tf.errors import UserError, check_packages, needed
from macaron_tf.io.plug_ins import find_sources

# A copy of macaron_tf.distribution.STRATEGIES, because importing that module loads TensorFlow.
STRATEGIES = ("cpu", "mirrored", "multi_worker", "tpu")
ENGINES = ("tensorflow", "jax")


def _prepare(options: argparse.Namespace) -> None:
    """Checks the arguments that several commands share, and sets derived attributes of `options`.

    The arguments `TFDS` set `options.tfds`, a `Tfds`. `DEVICES` set `options.devices`, a
    `tf.distribute.Strategy`.
    """
    values = vars(options)
    if extra := values.get("extra"):
        check_packages(extra)
    engine, mesh = values.get("engine"), values.get("mesh")
    if engine or mesh:
        _choose_engine(options)
    if values.get("resume"):
        if options.recipe or options.init:
            raise UserError(
                "--resume cannot be combined with RECIPE, RUN and --init: the run has saved its own"
            )
        options.run = options.resume
    elif "resume" in values and options.run is None:
        raise UserError(
            "RECIPE and RUN are required: give both or, to continue a run, --resume RUN"
        )
    if "download" in values:
        from macaron_tf.data.sources.tfds import Tfds
        from macaron_tf.runs.run import saved_data_dir
        from macaron_tf.training.locations import locate

        if options.data_dir is None:
            locations = (values.get("run"), *values.get("runs", ()))
            folders = (saved_data_dir(locate(one).folder) for one in locations if one)
            options.data_dir = next(filter(None, folders), None)
        options.tfds = Tfds(options.data_dir, options.download, options.trust_code)
    if "strategy" in values:
        from macaron_tf.distribution import make_strategy

        # With JAX, TensorFlow only reads the data and must not reserve GPUs.
        strategy = "cpu" if engine == "jax" else options.strategy
        options.devices = make_strategy(strategy, options.tpu, options.replicas)
        if engine == "jax":
            from macaron_tf.distribution.mesh import parse_mesh, use_mesh

            if options.strategy:
                from macaron_tf.distribution import read_cluster
                from macaron_tf.distribution.hosts import join_hosts

                # Without TF_CONFIG, JAX detects the cluster, such as a TPU slice or a SLURM job.
                join_hosts(*(read_cluster() if os.environ.get("TF_CONFIG") else ()))
            use_mesh(mesh and parse_mesh(mesh))
    find_sources(values.get("source"))


single_program = functools.partial(arguments.single_program, prepare=_prepare)


def _choose_engine(options: argparse.Namespace) -> None:
    """Selects the Keras backend by setting KERAS_BACKEND, which Keras reads at its first import."""
    flags = [name for name in ("strategy", "tpu", "replicas") if vars(options).get(name)]
    if options.engine == "jax":
        if flags and options.strategy != "multi_worker":
            raise UserError(
                f"--{flags[0]} {vars(options)[flags[0]]} works only with --engine tensorflow: "
                "choose JAX's devices with --mesh, or with --strategy multi_worker"
            )
        with needed("--engine jax"):
            import jax  # noqa: F401
    elif options.mesh:
        raise UserError(f"--mesh {options.mesh} needs --engine jax: add --engine jax")
    if "keras" in sys.modules and sys.modules["keras"].backend.backend() != options.engine:
        raise UserError(
            f"--engine {options.engine} cannot be selected after Keras is imported with another "
            f"backend: set KERAS_BACKEND={options.engine} before the process starts"
        )
    os.environ["KERAS_BACKEND"] = options.engine


def extra(name: str) -> Part:
    """Makes a command raise an error first if a package of an extra is missing."""
    return lambda parser: parser.set_defaults(extra=name)


class _RecipeHelp(argparse._HelpAction):
    def __call__(self, parser, namespace, values, option_string=None):
        parser.print_help()
        if namespace.recipe:
            from experiments.registry import run_settings

            print(f"\nsettings of {namespace.recipe}, for --set PATH=VALUE:")
            run_settings(argparse.Namespace(recipe=namespace.recipe, set=(), words=()))
        parser.exit()


def recipe_help(parser: argparse.ArgumentParser) -> None:
    """Makes `--help` behind the name of a recipe show the settings of the recipe, too."""
    text = "show this help message and exit; behind RECIPE, also show all settings of the recipe"
    parser.add_argument("-h", "--help", action=_RecipeHelp, help=text)


RECIPE_TEXT = (
    "name of a recipe (`macaron recipes` lists them), with its task if it has one, as in "
    "finetune:sst2; or your own function that returns a recipe, as FILE.py[:NAME] or "
    "package.module:NAME, where NAME may be omitted if it is the file's only function"
)
RECIPE = local_path_argument("recipe", RECIPE_TEXT)
SETTINGS = settings("training.max_steps=500, model.dropout=0 or data.source=tsv:FILE")
BACKWARD = switch(
    "--backward",
    "translate from the target language to the source language, with runs of unsupervised=True",
)


def numbers(spec: str, text: str, default=None, minimum: float = 1) -> Part:
    """Makes a flag for one or more numbers from `minimum` on, which must differ; see `count`."""
    return count(spec, text, default, minimum, nargs="+", action=Distinct)


def seeds(default: list[int], text: str) -> Part:
    """Makes the argument `--seeds N [N ...]`, whose values must differ."""
    text = f"{text} (default: {' '.join(map(str, default))})"
    return numbers("--seeds N", text, default, minimum=0)


TFDS = together(
    path_argument(
        "--data-dir DIR",
        "folder that contains the datasets of TensorFlow Datasets (default: for an existing run, "
        "the folder that it was trained with; otherwise the environment variable TFDS_DATA_DIR, "
        "or else ~/tensorflow_datasets)",
    ),
    switch("--download", "download and prepare datasets that are missing in --data-dir"),
)
CORPUS = path_argument(
    "--corpus DIR",
    "for pre-training: folder of a corpus written by `macaron prepare` (default: that of the run; "
    "`train` and `compare` prepare it)",
)
VOCABULARY = path_argument(
    "--vocabulary DIR",
    "folder of a saved vocabulary (default: that of --init, of --corpus or in the output folder; "
    "otherwise a new one trained on the training text). With --init, fine-tuning checks that the "
    "model has this vocabulary; a translator from BART or T5 takes it for the source language",
)
RUN = path_argument("run", "folder of the training run")
LOWER_CASE = argument(
    "--lower-case",
    "whether a model of another library lower-cases text; required if its files do not say so, and "
    "not allowed otherwise",
    action=argparse.BooleanOptionalAction,
    default=None,
)
DEVICES = group(
    "devices",
    argument(
        "--strategy",
        "devices to compute on. 'mirrored': all GPUs of this machine; 'multi_worker': the devices "
        "of all processes that the environment variable TF_CONFIG lists (default: the first GPU, "
        "or the CPU if there is none)",
        choices=STRATEGIES,
    ),
    count(
        "--replicas N",
        "number of GPUs for --strategy mirrored; without GPUs, the number of virtual CPUs "
        "(default: all GPUs, or 2 virtual CPUs)",
    ),
    argument("--tpu NAME", "TPU for --strategy tpu (default: 'local', the TPU of this TPU VM)"),
)
ENGINE = group(
    "engine",
    argument(
        "--engine",
        "Keras backend for training (default: 'tensorflow'). Both write the same checkpoints, so a "
        "run can be resumed with the other. With 'jax', --strategy multi_worker also detects the "
        "processes of a TPU slice or a SLURM job",
        choices=ENGINES,
    ),
    argument(
        "--mesh AXES",
        "device mesh for --engine jax, such as data=4,model=2; the axis 'data' splits batches, and "
        "the axis 'model' splits weights (default: data=1; with --strategy multi_worker, data=N "
        "for all N devices)",
    ),
)
CALLBACKS = argument(
    "--callback MODULE:CLASS",
    "Keras callback to add, such as your own class or a class of W&B or MLflow; "
    "'MODULE:CLASS(key=value)' passes arguments to the class (repeatable)",
    action="append",
    default=[],
)
