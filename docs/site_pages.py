"""MkDocs hook that makes the site of the documentation.

Pages have the same paths as in the repository, so that links work on the site and on a git host.
The hook generates from the code: models and recipes at the end of the pages in docs/systems/, the
settings, the help of the commands, and the API reference, whose text mkdocstrings makes.
"""

import contextlib
import fnmatch
import importlib
import inspect
import io
import math
import os
import pathlib
import posixpath
import re
from collections import defaultdict

from mkdocs.structure.files import File, Files

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "COLUMNS": "120"}

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ("*.md", "docs/*.*", "docs/systems/*.md", "experiments/results/**/*.*")
REFERENCE = "docs/reference/"
PACKAGES = ("", "layers", "models", "objectives", "training", "decoding", "text", "kernels")
PACKAGES += ("distribution", "hub", "hub.keras_hub", "layers.mixer", "layers.watching")
PACKAGES += ("models.catalog", "objectives.base", "tasks")
# Modules whose import defines every class of settings.
SETTINGS = ("experiments.registry", "macaron_tf.runs.finetuning", "macaron_tf.runs.embedding")
SETTINGS += ("macaron_tf.runs.text_to_text", "experiments.evaluation.translation")
SETTINGS += ("macaron_tf.data.tasks.own_tables", "export.server.config")


def on_files(files: Files, config) -> Files:
    """Returns the files of the site, with their paths in the repository.

    Python files that a page links to are copied unchanged.
    """
    paths = {path for pattern in PAGES for path in ROOT.glob(pattern) if path.suffix != ".py"}
    names = {path.relative_to(ROOT).as_posix() for path in paths}
    for name in [name for name in names if name.endswith(".md")]:
        linked = re.findall(r"\]\(([^)#\s]+\.py)\)", (ROOT / name).read_text(encoding="utf-8"))
        names |= {posixpath.normpath(posixpath.join(posixpath.dirname(name), to)) for to in linked}
    generated = {**settings_pages(), **commands_pages(), **api_pages()}
    theme = [file for file in files if file.src_dir != config.docs_dir]
    site = config.site_dir, config.use_directory_urls
    pages = [File(name, str(ROOT), *site) for name in sorted(names)]
    pages += [File.generated(config, name, content=text) for name, text in generated.items()]
    return Files([*theme, *pages])


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Returns a page's text; the page of a system ends with its models and recipes.

    The metadata at the top of the page have the patterns of their names.
    """
    if not page.file.src_uri.startswith("docs/systems/"):
        return markdown
    from experiments import registry
    from macaron_tf.models import catalog

    def matching(key: str, names: list[str]) -> list[str]:
        return [
            n for pattern in page.meta.get(key, "").split() for n in fnmatch.filter(names, pattern)
        ]

    models, recipes = matching("models", catalog.names()), matching("recipes", registry.names())
    sections = [markdown]
    if models:
        sections.append(
            "## Models\n\n`macaron_tf.build(NAME)` builds a model, and `--set model=NAME` selects "
            "it in a recipe. [catalog.py](../../macaron_tf/models/catalog.py) gives the sources of "
            "the sizes.\n"
        )
        head = ("name", "parameters", "width", "feed-forward", "heads", "layers")
        sections.append(table(head, map(model_row, models)))
    if recipes:
        sections.append("## Recipes\n\nEach description gives the sources of its numbers.\n")
    sections += [f"### {name}\n\n{registry.documentation(name)[0]}\n" for name in recipes]
    return "\n".join(sections)


def table(head, rows) -> str:
    lines = ["|" + "|".join(head) + "|", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("|" + "|".join(map(str, row)) + "|" for row in rows)]) + "\n"


def model_row(name: str) -> tuple:
    """Returns the table row of a catalog model, without allocating the weights of the model."""
    import keras

    from macaron_tf.models import catalog

    with keras.StatelessScope(initialize_variables=False):
        count = sum(math.prod(weight.shape) for weight in catalog.build(name).weights)
    config = catalog.config(name)
    sizes = [getattr(config, f, "") for f in ("hidden_dim", "feed_forward_dim", "num_heads")]
    depths = [getattr(config, f"num_{part}layers", None) for part in ("", "encoder_", "decoder_")]
    return f"`{name}`", f"{count:,}", *sizes, " + ".join(str(n) for n in depths if n)


def settings_pages() -> dict[str, str]:
    """Returns a dict mapping paths to pages: an index of all settings, and a page for each room."""
    from macaron_tf.settings import Settings, describe

    for name in SETTINGS:
        importlib.import_module(name)
    importlib.import_module("experiments.registry").names()  # imports the modules of recipes
    classes = list(Settings.__subclasses__())
    for cls in classes:
        classes += [child for child in cls.__subclasses__() if child not in classes]
    sections = defaultdict(list)
    for cls in classes:
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__ if base in classes)
        also = f" It also has the settings of {bases}." if bases else ""
        rows = [
            (f"`{item.name}`", item.text, item.range, item.default and f"`{item.default}`")
            for item in describe(cls)
            if item.name in vars(cls).get("__annotations__", {})
        ]
        rows = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in row] for row in rows]
        sections[".".join(cls.__module__.split(".")[:2])] += [
            f"## {cls.__name__}\n\n{inspect.getdoc(cls).splitlines()[0]}{also}\n",
            table(("setting", "meaning", "value", "default"), rows) if rows else "",
        ]
    index = (
        "# Every setting\n\n`--set PATH=VALUE` replaces a setting, and `macaron settings "
        "RECIPE [WORD]` prints the settings of a recipe with their values. [Recipes, settings, "
        "runs](../settings.md) is the guide.\n\n"
    )
    index += "".join(f"- [{room}](settings/{room}.md)\n" for room in sorted(sections))
    pages = {
        f"{REFERENCE}settings/{room}.md": "\n".join([f"# Settings: {room}\n", *parts])
        for room, parts in sections.items()
    }
    return {f"{REFERENCE}settings.md": index, **pages}


def commands_pages() -> dict[str, str]:
    """Returns a dict mapping paths to pages: an index of all commands, and a page for each one."""
    from experiments import commands
    from macaron_tf.cli.launcher import COMMANDS, import_command

    helps = {name: help_of(commands.main, name) for name in commands.COMMANDS}
    helps |= {name: help_of(import_command(module).main) for name, (module, _) in COMMANDS.items()}
    index, pages = "# Every command\n\nThese pages are generated from `--help`.\n\n", {}
    for name, help_text in helps.items():
        about = " ".join(help_text.split("\n\n")[1].split())  # the paragraph below the usage
        index += f"- [{name}](commands/{name}.md): {about}\n"
        pages[f"{REFERENCE}commands/{name}.md"] = f"# {name}\n\n````text\n{help_text}````\n"
    return {f"{REFERENCE}commands.md": index, **pages}


def help_of(main, *arguments: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*arguments, "--help"])
    return out.getvalue()


def api_pages() -> dict[str, str]:
    """Returns a dict mapping paths to pages: an index, and a page for each of `PACKAGES`."""
    index, pages = "# API\n\n", {}
    for package in PACKAGES:
        path = f"macaron_tf.{package}".rstrip(".")
        options = "{members: false, show_root_heading: false, show_root_toc_entry: false}"
        page = f"# {path}\n\n::: {path}\n    options: {options}\n"
        page += "".join(f"\n::: {path}.{name}\n" for name in public_names(path))
        index += f"- [{path}](api/{path}.md)\n"
        pages[f"{REFERENCE}api/{path}.md"] = page
    return {f"{REFERENCE}api.md": index, **pages}


def public_names(path: str) -> list[str]:
    """Returns the names in `__all__`, or those without an underscore that belong to this module.

    To a package belong the names that it imports from this project.
    """
    module = importlib.import_module(path)
    names = {name: getattr(module, name) for name in getattr(module, "__all__", vars(module))}
    package = hasattr(module, "__path__")

    def is_public(value) -> bool:
        home = getattr(value, "__module__", None) or ""
        return home.startswith("macaron_tf") if package else home == path

    return [
        name
        for name, value in names.items()
        if name[0] != "_" and (is_public(value) or (package and type(value) in (dict, tuple)))
    ]
