"""Named recipes. Loading a recipe imports only the module that defines the recipe."""

import argparse
import dataclasses
import importlib
import inspect
import json
import pkgutil
import textwrap
from collections.abc import Callable, Iterable

from experiments.recipe import Recipe, override, settings_of
from experiments.run import Run
from macaron_tf.errors import UserError, nearest
from macaron_tf.io.paths import as_path
from macaron_tf.plug_ins import call_user_code, find, find_sources, is_import_path

# Dict mapping a module of `experiments.recipes` to the names of its recipes.
_FAMILIES = {
    "bert": """
        bert_tiny bert_base bert_large bert_devlin_128 bert_devlin_512
        bert_rab_tiny bert_rab_base bert_rab_large swish_rnn_tiny swish_rnn_base swish_rnn_large
        macaron_bert_tiny macaron_bert_base macaron_bert_released
    """,
    "bert_successors": """
        roberta_tiny roberta_base roberta_8k_base roberta_8k_large modern_bert_tiny modern_bert_base
        albert_tiny albert_base
        span_bert_tiny span_bert_base electra_tiny electra_small electra_base
        xlm_tiny xlm_clm_tiny xlm_captions_tiny xlm_xnli gmlp_tiny gmlp_base amlp_tiny amlp_base
    """,
    "elmo": "elmo_tiny elmo_original",
    "language_models": """
        gpt_tiny gpt_quick gpt_base gpt2_tiny gpt2_base llama_tiny llama_quick
        transformer_xl_tiny transformer_xl_base xlnet_tiny xlnet_large xlnet_base
    """,
    "tcn": """
        tcn_adding tcn_copy_memory tcn_jsb tcn_nottingham tcn_mnist tcn_permuted_mnist
        tcn_ptb_words tcn_ptb_characters tcn_wikitext tcn_lambada
    """,
    "text_to_text": "t5_tiny t5_base bart_tiny bart_base",
    "translation": """
        demo multi30k_macaron_tiny multi30k_transformer_tiny multi30k_xlm_tiny
        multi30k_unsupervised_tiny multi30k_bart_tiny
        iwslt14_macaron_small wmt14_macaron_base wmt14_macaron_big
    """,
}
FAMILY_OF = {name: family for family, names in _FAMILIES.items() for name in names.split()}


def _recipe_function(name: str) -> Callable[[], Recipe] | None:
    """Returns the function that makes the recipe `name`, or `None` if there is no such recipe."""
    if name not in FAMILY_OF:
        return None
    # Imported late, because the modules of recipes import modules that import this module.
    return getattr(importlib.import_module(f"experiments.recipes.{FAMILY_OF[name]}"), name)


def names(recipe_class: type[Recipe] = Recipe) -> list[str]:
    """Returns the sorted names of all recipes of the class `recipe_class`."""
    return [
        name for name in sorted(FAMILY_OF) if isinstance(_recipe_function(name)(), recipe_class)
    ]


def load(name: str, recipe_class: type[Recipe] = Recipe, settings: Iterable[str] = ()) -> Recipe:
    """Makes a recipe and replaces settings.

    Args:
        name: name of a recipe, or location of a user's function as `./my_recipes.py[:NAME]` or
            `package.module:NAME`.
        recipe_class: class that the recipe must have.
        settings: strings of the form `path=value`; see `override`.

    Raises:
        UserError: there is no such recipe, the user's function fails, the recipe's class is not
            `recipe_class`, or a setting is not valid.
    """
    return override(make_recipe(name, recipe_class, _recipe_function(name)), settings)


def resumed(options: argparse.Namespace, run_class: type[Run]) -> Run | None:
    """Returns the run of `--resume`, or `None` without this flag."""
    if options.resume is None:
        return None
    path, trust_code = as_path(options.run), options.trust_code
    return run_class.existing(path, trust_code) or run_class.open(path, trust_code)


def plan(
    options: argparse.Namespace,
    run_class: type[Run],
    recipe: Recipe | None = None,
    earlier: Run | None = None,
) -> Run:
    """Returns the run that a `train` command describes, with `--set` applied to its recipe.

    Args:
        options: parsed options of the command.
        run_class: class of the run.
        recipe: recipe before `--set`; `None` means the recipe that RECIPE names or, with
            `--resume`, the recipe that the run has saved.
        earlier: the run of `--resume`, if it is open already.
    """
    path = as_path(options.run)
    earlier = earlier or resumed(options, run_class)
    if recipe is None:
        recipe = earlier.recipe if earlier else load(options.recipe, run_class.recipe_class)

    def read_saved() -> Recipe | None:
        nonlocal earlier
        earlier = earlier or run_class.existing(path, options.trust_code)
        return earlier and earlier.recipe

    recipe = override(recipe, options.set, read_saved)
    context = {"data_dir": options.data_dir, "earlier": earlier, "settings": options.set}
    return run_class(path, recipe, None, **context)


def make_recipe(
    name: str, recipe_class: type[Recipe], builtin: Callable | None, *arguments
) -> Recipe:
    """Calls the function that makes a recipe, and checks the recipe's class.

    Args:
        name: name of the recipe, or location of a user's function.
        recipe_class: class that the recipe must have.
        builtin: function of this package that makes the recipe `name`; `None` if there is none.
        arguments: arguments of the function that makes the recipe.

    Raises:
        UserError: there is no recipe `name`, the user's function fails, or the recipe's class is
            not `recipe_class`.
    """
    if is_import_path(name):
        recipe = call_user_code(name, find(name, trust_code=True), *arguments)
        if not isinstance(recipe, recipe_class):
            raise UserError(
                f"{name} returns a value of type {type(recipe).__name__}, but this command needs a "
                f"{recipe_class.__name__}: correct the function, or use another command"
            )
        find_sources(dataclasses.asdict(recipe))
        return recipe
    if builtin is None:
        raise UserError(
            f"no recipe is called {name!r}: choose one of {', '.join(names(recipe_class))}"
            f"{nearest(name, names(recipe_class))}; for your own file write ./{name}.py"
        )
    recipe = builtin(*arguments)
    if not isinstance(recipe, recipe_class):
        raise UserError(
            f"{name} is a recipe of kind {recipe.kind!r}, which this command does not support: "
            f"use {recipe.command}, or choose one of {', '.join(names(recipe_class))}"
        )
    return recipe


def documentation(name: str) -> tuple[str, str]:
    """Returns the docstring of a built-in recipe and the docstring of its module."""
    function = _recipe_function(name)
    return inspect.getdoc(function), inspect.getdoc(inspect.getmodule(function))


def source_code(name: str, recipe: Recipe) -> str:
    """Returns the text of a Python file that defines a copy of a recipe, for a user to edit.

    Args:
        name: name of a built-in recipe.
        recipe: the recipe.
    """
    classes: set[type] = set()
    code = _code(recipe, classes, "    ")
    modules = sorted({cls.__module__ for cls in classes})
    lines = [
        f'"""A copy of the recipe {name} to change.\n',
        f"    {recipe.command} train ./{name}.py runs/{name}",
        '"""\n',
    ]
    for module in modules:
        class_names = sorted(cls.__name__ for cls in classes if cls.__module__ == module)
        lines.append(f"from {module} import {', '.join(class_names)}")
    lines += [
        f"\n\ndef {name}() -> {type(recipe).__name__}:",
        textwrap.indent(f'"""{documentation(name)[0]}\n"""', "    "),
        f"    return {code}",
    ]
    return "\n".join(lines) + "\n"


def _code(value, classes: set[type], indent: str) -> str:
    """Returns a Python expression that evaluates to `value`, without settings at default values.

    Args:
        value: settings, a tuple, or a value that `repr` or JSON can format.
        classes: set to which the function adds the settings classes in `value`.
        indent: indentation of the line in which the expression begins.
    """
    inner_indent = f"{indent}    "
    if dataclasses.is_dataclass(value):
        classes.add(type(value))
        parts = [
            f"{field.name}={_code(getattr(value, field.name), classes, inner_indent)}"
            for field in dataclasses.fields(value)
            if getattr(value, field.name) != field.default
        ]
        name, closing = f"{type(value).__name__}(", ")"
    elif isinstance(value, tuple):
        parts, name, closing = [_code(item, classes, inner_indent) for item in value], "(", ")"
        closing = ",)" if len(parts) == 1 else ")"
    else:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    line = name + ", ".join(parts) + closing
    if len(indent) + len(line) < 88 and "\n" not in line:
        return line
    return f"{name}\n" + "".join(f"{inner_indent}{part},\n" for part in parts) + f"{indent})"


def run(options: argparse.Namespace) -> None:
    """Runs the command `recipes [NAME]`: lists all recipes, or prints a recipe as a Python file."""
    recipe_class, name = pkgutil.resolve_name(options.recipe_class), options.name
    if name is None:
        for listed in names(recipe_class):
            print(f"{listed:28} {documentation(listed)[0].splitlines()[0]}")
        return
    if is_import_path(name):
        raise UserError(f"{name} is your own recipe: edit its file, or name a built-in recipe")
    print(source_code(name, load(name, recipe_class)), end="")


def run_settings(options: argparse.Namespace) -> None:
    """Runs the command `settings RECIPE [WORD ...]`: prints the settings of a recipe."""
    recipe_class = pkgutil.resolve_name(options.recipe_class)
    print_settings(load(options.recipe, recipe_class, options.set), options.words)


def print_settings(recipe: Recipe, words: Iterable[str] = ()) -> None:
    """Prints the path, value, range and meaning of settings.

    Args:
        recipe: the recipe.
        words: words to look for in paths and meanings; without words, all settings are printed.
    """
    for path, value, range_, text in settings_of(recipe):
        if not words or any(word in f"{path} {text}" for word in words):
            print(f"{path}={value}\n    {range_}{text and f': {text}'}")
