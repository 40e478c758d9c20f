"""MkDocs' hook: the site has the repository's own layout, so that links work there and on a git host.

Pages are README.md, docs/, the results and two guides that lie beside their code. Python files that
a page links are pages too. Made from the code: a system's layer, models and recipes, below its text
in docs/systems/; every setting; every command's help; the API of every name that a room exports.
"""

import ast
import contextlib
import fnmatch
import functools
import importlib
import inspect
import io
import math
import os
import pathlib
import posixpath
import re

from mkdocs.structure.files import File, Files

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

ROOT = pathlib.Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/*",
    "docs/systems/*.md",
    "experiments/results/**/*",
    "experiments/cloud/*",
    "export/deploy/*",
)
ROOMS = ("", "layers", "models", "objectives", "training", "decoding", "text", "kernels")
ROOMS += ("distribution", "interop", "keras_hub", "layers.mixer", "layers.watching")
LINK = re.compile(r"\]\(([^)#\s]+\.py)\)")


class SourcePage(File):
    """A Python file as a page."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config) -> Files:
    """The site's files, under their paths from the repository's root."""
    found = [path for form in PAGES for path in sorted(ROOT.glob(form)) if path.is_file()]
    names = [
        path.relative_to(ROOT).as_posix() for path in found if path.suffix not in (".py", ".txt")
    ]
    names += {
        posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        for name in names
        if name.endswith(".md")
        for target in LINK.findall((ROOT / name).read_text(encoding="utf-8"))
    }
    names.append("macaron_tf/models/catalog.py")
    made = {
        "docs/reference/settings.md": settings_page,
        "docs/reference/commands.md": commands_page,
        **{
            f"docs/reference/{room or 'macaron_tf'}.md": functools.partial(api_page, room)
            for room in ROOMS
        },
    }
    # A theme's own files stay; those of docs/ come back under their full names.
    kept = [file for file in files if file.src_dir != config.docs_dir]
    for name in names:
        kind = SourcePage if name.endswith(".py") else File
        kept.append(kind(name, str(ROOT), config.site_dir, config.use_directory_urls))
    kept += [File.generated(config, name, content=make()) for name, make in made.items()]
    systems = ["docs/systems.md", *(name for name in names if name.startswith("docs/systems/"))]
    fill(config.nav, {"SYSTEMS": systems, "API": list(made)[2:]})
    return Files(kept)


def fill(nav: list, lists: dict[str, list[str]]) -> None:
    """Replaces a list's name in the navigation by its pages."""
    for entry in nav:
        for title, value in entry.items() if isinstance(entry, dict) else ():
            if isinstance(value, list):
                fill(value, lists)
            else:
                entry[title] = lists.get(value, value)


def on_page_markdown(markdown: str, page, config, files) -> str:
    """The text of a page, with what is made from the code."""
    name = page.file.src_uri
    if name.endswith(".py"):
        page.meta |= {"search": {"exclude": True}, "hide": ["toc"]}
        return f"# {name}\n\n````python\n{markdown}\n````\n"
    if name.startswith("docs/systems/"):
        return markdown + "\n" + system(page.meta)
    return markdown


# A page for each system.


def system(meta: dict) -> str:
    """A system's layer, models and recipes."""
    from experiments import registry
    from macaron_tf.models import catalog

    models, recipes = (
        [name for form in meta.get(key, "").split() for name in fnmatch.filter(known, form)]
        for key, known in (("models", catalog.names()), ("recipes", registry.names()))
    )
    parts = []
    if meta.get("layer"):
        parts.append("## A layer\n\n" + layers(catalog.config(meta["layer"])))
    if models:
        parts.append(
            "## Models\n\n`macaron_tf.build(NAME)` makes one, and `--set model=NAME` takes it into a "
            "recipe. Sources of the sizes stand in [catalog.py](../../macaron_tf/models/catalog.py).\n\n"
            + table(("name", "parameters", "D", "F", "heads", "layers"), map(model_row, models))
        )
    if recipes:
        parts.append(
            "## Recipes\n\nEach text says where the recipe's numbers are from.\n\n"
            + "\n".join(map(recipe_text, recipes))
        )
    return "\n".join(parts)


def table(head, rows) -> str:
    lines = ["|" + "|".join(head) + "|", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("|" + "|".join(map(str, row)) + "|" for row in rows)]) + "\n"


def model_row(name: str) -> tuple:
    """A model of the catalog, its parameters counted without memory for them."""
    import keras

    from macaron_tf.models import catalog

    with keras.StatelessScope(initialize_variables=False):
        count = sum(math.prod(weight.shape) for weight in catalog.build(name).weights)
    config = catalog.config(name)
    depth = [getattr(config, f"num_{part}layers", None) for part in ("", "encoder_", "decoder_")]
    sizes = (getattr(config, f, "") for f in ("hidden_dim", "feed_forward_dim", "num_heads"))
    return f"`{name}`", f"{count:,}", *sizes, " + ".join(str(n) for n in depth if n)


def recipe_text(name: str) -> str:
    from experiments import registry

    recipe, (text, _) = registry.load(name), registry.documentation(name)
    first, _, rest = text.partition("\n")
    command = f"{recipe.command} train {name} runs/{name}"
    command += " --data FILE" if recipe.kind == "tcn" else " --data-dir DIR"
    if "\n    " in rest:  # the recipe's own text has the command
        command = ""
    return f"### {name}\n\n{first}\n{rest}\n" + (f"\n    {command}\n" if command else "")


COLOURS = {"tokens": "#f4c78e", "memory": "#f7dfa5", "channels": "#a9cce3"}


def layers(config) -> str:
    """The equations and pictures of a configuration's layers, from their schemes."""
    from macaron_tf.models.config import EncoderDecoderConfig

    scheme = list(config.splittings[0])
    if not isinstance(config, EncoderDecoderConfig):
        return layer(config, scheme, "causal " * config.causal)
    decoder = []
    for mix in scheme:
        decoder.append((mix, "causal " if mix.operator == "tokens" else ""))
    both = "**Encoder**\n\n" + layer(config, scheme, "")
    return both + "\n**Decoder**\n\n" + layer(config, with_memory(scheme), "causal ")


def with_memory(scheme: list) -> list:
    """The operators of a decoder: it attends the encoder's output after each look at its own."""
    from macaron_tf.layers import Mix

    pairs = ((mix, Mix("memory", mix.step_size)) for mix in scheme)
    return [
        one
        for mix, memory in pairs
        for one in ((mix, memory) if mix.operator == "tokens" else (mix,))
    ]


def layer(config, scheme: list, causal: str) -> str:
    token = {"gmlp": "gated MLP", "amlp": "gated MLP with a tiny attention"}
    names = {
        "tokens": causal
        + token.get(config.blocks[0], "relative attention" if config.relative else "attention"),
        "memory": "attention to the source",
        "channels": "SwishRNN" if config.blocks[0] == "swish_rnn" else "feed-forward",
    }
    lines, boxes, y = [], [], 10
    for mix in scheme:
        step = "" if mix.step_size == 1 else f"{mix.step_size:g} * "
        called = names[mix.operator].replace(" ", "_").replace("-", "_")
        inner, end = ("norm(x)", "") if config.norm == "pre" else ("x", ")")
        lines.append(f"x = {'norm(' * bool(end)}x + {step}{called}({inner}){end}")
    height = {id(mix): 16 + 28 * abs(mix.step_size) for mix in scheme}
    for mix in reversed(scheme):
        h, text = (
            height[id(mix)],
            f"{mix.step_size:g} × " * (mix.step_size != 1) + names[mix.operator],
        )
        boxes.append(
            f'<path d="M120 {y}v12" stroke="#777"/><rect x="1" y="{y + 12}" width="238" height="{h:g}" '
            f'rx="6" fill="{COLOURS[mix.operator]}" stroke="#555"/><text x="120" y="{y + 17 + h / 2:g}" '
            f'text-anchor="middle" font-size="14" fill="#222">{text}</text>'
        )
        y += 12 + h
    svg = f'<svg viewBox="0 0 240 {y + 12:g}" width="240" role="img">{"".join(boxes)}'
    svg += f'<path d="M120 {y:g}v12" stroke="#777"/></svg>'
    return (
        f'<div class="layer" markdown>\n{svg}\n\n```python\n'
        + "\n".join(lines)
        + "\n```\n\n</div>\n"
    )


# References.


def settings_page() -> str:
    """Every settings class: its paths on the command line, and each field."""
    from experiments.registry import names  # imports every command's recipe
    from macaron_tf.settings import Settings, describe, hints_of

    names()
    importlib.import_module("export.server.config")

    def below(cls):
        return {cls} | {one for child in cls.__subclasses__() for one in below(child)}

    rooms = ("macaron_tf", "experiments", "export")
    known = [
        cls
        for cls in below(Settings)
        if cls is not Settings and cls.__module__.split(".")[0] in rooms
    ]
    places: dict[type, set[str]] = {}
    for recipe in (cls for cls in known if "kind" in vars(cls) and hasattr(cls, "may_change")):
        note_places(recipe, "", places, hints_of)
    text = [
        "# Every setting\n\nMade from the `Settings` classes. `--set PATH=VALUE` replaces one, and "
        "`python -m experiments.pretrain settings RECIPE [WORD]` prints a recipe's with their values. "
        "A class has the settings of its bases too. [Recipes and settings](../settings.md) explains the forms.\n"
    ]
    for cls in sorted(
        known,
        key=lambda cls: (
            cls.__module__.replace("macaron_tf", "").count("server"),
            cls.__module__,
            cls.__name__,
        ),
    ):
        own = [item for item in describe(cls) if item.name in vars(cls).get("__annotations__", {})]
        bases = [
            f"[{base.__name__}](#{base.__name__.lower()})"
            for base in cls.__bases__
            if base in known
        ]
        first = inspect.getdoc(cls).splitlines()[0] if cls.__doc__ else ""
        text.append(f"## {cls.__name__}\n\n{first}\n")
        if bases:
            text.append(f"Also the settings of {', '.join(bases)}.\n")
        if places.get(cls):
            text.append(f"Path: {', '.join(f'`{place}NAME`' for place in sorted(places[cls]))}.\n")
        rows = (
            (
                f"`{item.name}`",
                cell(item.range),
                cell(item.default and f"`{item.default}`"),
                cell(item.text),
            )
            for item in own
        )
        text.append(table(("setting", "value", "default", "meaning"), rows))
    return "\n".join(text)


def note_places(cls, path: str, places: dict, hints_of) -> None:
    """Notes the paths under which a class's fields are set."""
    import dataclasses

    for base in cls.__mro__:
        if dataclasses.is_dataclass(base):
            places.setdefault(base, set()).add(path)
    for name, hint in hints_of(cls).items():
        if dataclasses.is_dataclass(hint):
            note_places(hint, f"{path}{name}.", places, hints_of)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def commands_page() -> str:
    """The help of every command."""
    from macaron_tf.command_names import COMMANDS

    parts = [
        "# Every command\n\nMade from `--help`. In an installed package `macaron NAME` is short for the module.\n"
    ]
    for name, (module, text) in COMMANDS.items():
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(f"{module}.__main__").__name__
        main = importlib.import_module(module).main
        whole = help_of(main, [])
        parts.append(f"## {name}\n\n{text[0].upper() + text[1:]}.\n\n{fenced(whole)}")
        found = re.search(r"COMMAND\n((?:    .*\n)+)", whole)
        for sub in re.findall(r"^    ([\w-]+)", found[1], re.M) if found else ():
            parts.append(f"### {name} {sub}\n\n{fenced(help_of(main, [sub]))}")
    return "\n".join(parts)


def help_of(main, words: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return out.getvalue()


def fenced(text: str) -> str:
    return f"````text\n{text.rstrip()}\n````\n"


def exported(room: str) -> list[str]:
    """The names that a room exports: imported by its package, or defined by its module."""
    path = ROOT / "macaron_tf" / room.replace(".", "/")
    package = path / "__init__.py"
    tree = ast.parse(
        (package if package.exists() else path.with_suffix(".py")).read_text(encoding="utf-8")
    )
    if not room:
        return ["build", "load"]
    names = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif (
            isinstance(node, ast.ImportFrom)
            and package.exists()
            and node.module.startswith("macaron_tf.")
        ):
            names += [alias.asname or alias.name for alias in node.names]
    return [name for name in names if not name.startswith("_")]


def api_page(room: str) -> str:
    """The reference of a room."""
    place = f"macaron_tf.{room}".rstrip(".")
    module = f"# {place}\n\n::: {place}\n    options: {{members: false, show_root_heading: false, show_root_toc_entry: false}}\n"
    return module + "".join(f"\n::: {place}.{name}\n" for name in exported(room))
