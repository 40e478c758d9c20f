"""Commands as tables of their arguments: the parsers, and what several commands share.

A part adds one argument or several to a parser. The functions that commands run are named, not
imported: `--help` answers without TensorFlow.
"""

import argparse
import contextlib
import functools
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence

from macaron_tf.command_names import as_typed
from macaron_tf.errors import UserError, check_path, needed
from macaron_tf.plug_ins import trusting
from macaron_tf.program import exit_on_user_error

# Adds arguments to a parser, and returns them where others want to know them.
Part = Callable[[argparse.ArgumentParser], Sequence[argparse.Action] | None]
# Name, help, `module:function` that gets the parsed options, arguments.
Command = tuple[str, str, str, tuple[Part, ...]]

# macaron_tf.distribution.STRATEGIES, which cannot be imported without TensorFlow.
STRATEGIES = ("cpu", "one_gpu", "mirrored", "multi_worker", "tpu")
ENGINES = ("tensorflow", "jax")


class Parser(argparse.ArgumentParser):
    """A parser that keeps the lines of its text, and writes commands as the user typed this one."""

    def __init__(self, *, prog: str = "", **options):
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=as_typed(prog), formatter_class=layout, **options)

    def format_help(self) -> str:
        """The help, see `as_typed`."""
        return as_typed(super().format_help())


def program(
    module: str, text: str, *commands: Command, forms: str = "", default: str | None = None
) -> Callable[..., int]:
    """The `main` of `python -m MODULE COMMAND`.

    Args:
        text: the help, examples included.
        forms: the last part of every help, such as the forms of sources.
        default: the command of words that begin with none.
    """
    parser = Parser(prog=f"python -m {module}", description=text, epilog=forms)
    add = parser.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser
    for name, help_, run, parts in commands:
        _fill(add(name, help=help_, description=help_, epilog=forms), run, parts)
    known = {"-h", "--help", *(name for name, *_ in commands)}

    def completed(words: list[str]) -> list[str]:
        return words if not default or not words or words[0] in known else [default, *words]

    return _main(lambda words: parser.parse_args(completed(words)))


def single_program(
    module: str, text: str, run: str, *parts: Part, forms: str = ""
) -> Callable[..., int]:
    """The `main` of `python -m MODULE`, which has no sub-commands; see `program`."""
    parser = Parser(prog=f"python -m {module}", description=text, epilog=forms)
    _fill(parser, run, parts)
    return _main(parser.parse_intermixed_args)


def _fill(parser: argparse.ArgumentParser, run: str, parts: tuple[Part, ...]) -> None:
    parser.set_defaults(
        function=run, uses_devices=False, uses_tfds=False, starts=(), engine=None, mesh=None
    )
    together(*parts, TRUST_CODE)(parser)


def _main(parse: Callable[[list[str]], argparse.Namespace]) -> Callable[..., int]:
    @exit_on_user_error
    def main(arguments: list[str] | None = None) -> int | None:
        """Runs the command; see `--help`.

        Its options are the parsed arguments, `arguments`, the words given, `tfds` of a command
        with `TFDS`, and `devices`, the `tf.distribute.Strategy` of a command with `DEVICES`.
        """
        words = sys.argv[1:] if arguments is None else arguments
        options = parse(words)
        options.arguments = words
        if options.engine or options.mesh:
            _choose_engine(options)
        if options.starts:
            _check_start(options)
        if "checkpoint" in options and "run" in options:
            _name_checkpoint(options)
        if written := vars(options).get("output"):
            for name in filter(None, vars(options).get("files") or [vars(options).get("input")]):
                if os.path.realpath(name) == os.path.realpath(written):
                    raise UserError(f"--output {written} is the input too: give another file")
        if options.uses_tfds:
            from experiments.run import kept_data_dir
            from macaron_tf.data.sources.tfds import Tfds

            if options.data_dir is None and "run" in options:
                options.data_dir = kept_data_dir(options.run)
            options.tfds = Tfds(options.data_dir, options.download)
        if options.uses_devices:
            from macaron_tf.distribution import make_strategy
            from macaron_tf.distribution.memory import limit_memory

            # JAX computes, TensorFlow reads the data: it must not take the GPUs.
            strategy = "cpu" if options.engine == "jax" else options.strategy
            options.devices = make_strategy(strategy, options.tpu, options.replicas)
            if options.engine == "jax":
                from macaron_tf.distribution.mesh import parse_mesh, use_mesh

                use_mesh(parse_mesh(options.mesh or "data=1"))
            elif arguments is None:
                limit_memory()
        with trusting(options.trust_code):
            return pkgutil.resolve_name(options.function)(options)

    return main


def _choose_engine(options: argparse.Namespace) -> None:
    """Sets Keras's backend, which its first import reads."""
    others = [name for name in ("strategy", "tpu", "replicas") if vars(options).get(name)]
    if options.engine == "jax":
        if others:
            raise UserError(f"--{others[0]} is of --engine tensorflow: give --mesh, or neither")
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


def _name_checkpoint(options: argparse.Namespace) -> None:
    """Takes RUN@CHECKPOINT apart; refuses a checkpoint of a place that has none."""
    if not options.checkpoint and "@" not in (options.run or ""):
        return
    from macaron_tf.pretrained import locate

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


def command(name: str, text: str, run: str, *parts: Part) -> Command:
    """A command of a `program`."""
    return name, text, run, parts


def argument(form: str, text: str, **options) -> Part:
    """An argument with its help.

    Args:
        form: its name, and a flag's value after a space, such as `--out DIR`.
        options: of `add_argument`.
    """
    name, _, value = form.partition(" ")
    options |= {"metavar": value} if value else {}
    if name.startswith("--") and not options.keys() & {"type", "action", "choices"}:
        options["type"] = functools.partial(_word, name)
    return lambda parser: [parser.add_argument(name, help=text, **options)]


def _word(name: str, text: str) -> str:
    if not text:
        raise UserError(f"{name} is empty: leave it out, or give it (is a shell's variable unset?)")
    return text


def place(form: str, text: str, local: bool = False, **options) -> Part:
    """An argument that names a file, a folder, or a source in one; see `check_path`."""
    checked = functools.partial(check_path, local=local, name=form.partition(" ")[0])
    return argument(form, text, type=checked, **options)


local_place = functools.partial(place, local=True)


def switch(name: str, text: str) -> Part:
    """A flag without a value."""
    return argument(name, text, action="store_true")


def yes_or_no(name: str, text: str) -> Part:
    """`--NAME` and `--no-NAME`; None where neither is given."""
    return argument(name, text, action=argparse.BooleanOptionalAction, default=None)


class Distinct(argparse.Action):
    """Stores the values of a flag; refuses one that is given twice."""

    def __call__(self, parser, namespace, values, option_string=None):
        if len(set(values)) < len(values):
            raise UserError(f"{option_string} {' '.join(map(str, values))}: give each once")
        setattr(namespace, self.dest, values)


def count(form: str, text: str, default=None, least=1, below=None, **options) -> Part:
    """A flag that takes a number within a range; others are refused in a sentence.

    Args:
        least, below: the range. An int for `least` takes whole numbers only; None = what
            TensorFlow's int32 and float32 can hold.
    """
    kind, name = type(least), form.partition(" ")[0]
    if below is None:
        span = f"{least:g} or more, at most {'2147483647' if kind is int else '3.4e38'}"
    else:
        span = f"{least} to {below - 1}" if kind is int else f"{least:g} to below {below}"
    below = below or (2**31 if kind is int else 3.4e38)

    def checked(given: str) -> float:
        with contextlib.suppress(ValueError):
            if (kind is float or re.fullmatch("-?[0-9]+", given)) and least <= kind(given) < below:
                return kind(given)
        shown = given if len(given) < 40 else f"{given[:40]}..."
        raise UserError(f"{name} {shown}: give a {'whole ' * (kind is int)}number of {span}")

    return argument(form, text, type=checked, default=default, **options)


def together(*parts: Part) -> Part:
    """Several parts as one."""

    return lambda parser: [action for part in parts for action in part(parser) or ()]


def group(title: str, *parts: Part, text: str | None = None) -> Part:
    """Parts under a title of their own in the help."""
    return lambda parser: together(*parts)(parser.add_argument_group(title, text))


def source_forms(forms: dict[str, str]) -> str:
    """A line for each form of source, such as `macaron_tf.data.sources.names.PAIRS`."""
    width = max(map(len, forms))
    return "".join(f"  {form:{width}}  {text}\n" for form, text in forms.items())


def settings(examples: str, flag: str = "--set") -> Part:
    """`--set PATH=VALUE`, as often as wanted."""
    text = f"replace a setting, such as {examples}"
    return argument(f"{flag} PATH=VALUE", text, action="append", default=[])


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


def checkpoint(names: str = "best, last or a step's number (default: best)") -> Part:
    """`--checkpoint`, with the names it takes."""
    return argument("--checkpoint NAME", names)


def finetuning(*tasks: str) -> Part:
    """`--tasks` of a study, their data, and `--finetune-set`."""
    return together(
        argument("--tasks", f"default {' '.join(tasks)}", nargs="+", default=list(tasks)),
        DATA_DIR,
        place("--source", "examples of the one task, such as tsv:FILE"),
        settings("epochs=1, of every fine-tuning", "--finetune-set"),
    )


TRUST_CODE = switch(
    "--trust-code", "import the modules that a folder names, such as its author's block"
)
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
            "TF_CONFIG names; by default the first GPU, or the CPU without one",
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
        "of batches, model cuts the weights (default data=1, one device)",
    ),
)
TRAINING_DEVICES = together(DEVICES, ENGINE)
DATA_SERVICE = argument(
    "--data-service HOST:PORT",
    "have the batches made by `python -m experiments.data_service` elsewhere; several, with "
    "commas, are dealt to the workers",
)
