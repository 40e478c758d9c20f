"""MkDocs' hook: the site has the repository's paths, so that links work there and on a git host.

Pages are README.md, docs/, the results, two guides that lie beside their code, and the Python files
that a page links. Made from the code: a system's layer, models and recipes, below its text in
docs/systems/; every setting; every command's help; the API of every name that a room exports.
"""

import contextlib
import dataclasses
import fnmatch
import fractions
import importlib
import inspect
import io
import itertools
import math
import os
import pathlib
import posixpath
import re
import textwrap

from mkdocs.structure.files import File, Files

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}

ROOT = pathlib.Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/*",
    "docs/systems/*.md",
    "experiments/results/**/*",
    "experiments/cloud/*",
    "export/deploy/*",
)
ROOMS = ("", "layers", "models", "objectives", "training", "decoding", "text", "kernels")
ROOMS += ("distribution", "interop", "interop.keras_hub", "layers.mixer", "layers.watching")
ROOMS += ("models.catalog", "objectives.base", "tasks")
OVERVIEW = "docs/systems.md"
CLAIMS = "docs/claims.md"
BLOCK = re.compile(r"(?<=\n\n)(?:    .*\n\n?)+")  # of code, by its indentation
REFERENCE = "docs/reference/"
# In the search, beside names of the API and words of result pages.
GUIDE_BOOST, SETTING_BOOST = 20, 21
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
    settings, commands = settings_pages(), commands_pages()
    rooms = {f"{REFERENCE}{room or 'macaron_tf'}.md": api_page(room) for room in ROOMS}
    # A theme's own files stay; those of docs/ come back under their full names.
    kept = [file for file in files if file.src_dir != config.docs_dir]
    for name in names:
        kind = SourcePage if name.endswith(".py") else File
        kept.append(kind(name, str(ROOT), config.site_dir, config.use_directory_urls))
    made = {**settings, **commands, **rooms}
    kept += [File.generated(config, name, content=text) for name, text in made.items()]
    systems = re.findall(r"\((systems/\w+\.md)\)", (ROOT / OVERVIEW).read_text(encoding="utf-8"))
    systems = [OVERVIEW, *(f"docs/{name}" for name in dict.fromkeys(systems))]
    lists = {"SYSTEMS": systems, "SETTINGS": settings, "COMMANDS": commands, "API": rooms}
    fill(config.nav, {name: list(pages) for name, pages in lists.items()})
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
    guide = name == OVERVIEW or (page.parent and page.parent.title in ("Start", "Guides"))
    setting = name.startswith(f"{REFERENCE}settings/")
    boost = GUIDE_BOOST if guide else SETTING_BOOST if setting else 1
    page.meta["search"] = {"boost": boost}
    if name.endswith(".py"):
        page.meta |= {"search": {"exclude": True}, "hide": ["toc"]}
        return f"# {name}\n\n````python\n{markdown}\n````\n"
    if name.startswith("docs/systems/"):
        markdown += "\n" + system(page.meta)
    return BLOCK.sub(both_forms, markdown)


def both_forms(block: re.Match) -> str:
    """A block of commands in tabs: as a checkout runs them, and as an installed package does."""
    from macaron_tf.command_names import spelled

    code = block[0].rstrip("\n") + "\n"
    if (installed := spelled(code)) == code:
        return block[0]
    tabs = {"In a checkout": code, "Installed": installed}
    return "".join(f'=== "{t}"\n\n{textwrap.indent(c, "    ")}\n' for t, c in tabs.items())


# A page for each system.


def system(meta: dict) -> str:
    """A system's row among the claims that were tried, its layer, models and recipes."""
    from experiments import registry
    from macaron_tf.models import catalog

    models, recipes = (
        [name for form in meta.get(key, "").split() for name in fnmatch.filter(known, form)]
        for key, known in (("models", catalog.names()), ("recipes", registry.names()))
    )
    parts = []
    if meta.get("claims"):
        text = (ROOT / CLAIMS).read_text(encoding="utf-8").replace("](../", "](../../")
        rows = re.findall(rf"^\| {meta['claims']}.*$", text, re.MULTILINE)
        columns = "claim", "the slides' number", "ours", "seeds; learning rates", "p", "verdict"
        head = f"| {' | '.join((*columns, 'page'))} |\n{'|---' * 7}|"
        parts.append("\n".join(["## Beside the slides\n", head, *rows, ""]))
    if meta.get("layer"):
        parts.append("## A layer\n\n" + layers(catalog.config(meta["layer"])))
    if models:
        parts.append(
            "## Models\n\n`macaron_tf.build(NAME)` makes one, and `--set model=NAME` takes it into "
            "a recipe. D is the width, F the inner width of a layer's feed-forwards; sources of "
            "the sizes stand in [catalog.py](../../macaron_tf/models/catalog.py).\n\n"
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


def layers(config) -> str:
    """The pictures and equations of a configuration's layers, from their schemes or sizes."""
    from macaron_tf.layers import Mix
    from macaron_tf.layers.scheme import steps_of
    from macaron_tf.models import EncoderDecoderConfig
    from macaron_tf.models.elmo import ElmoConfig
    from macaron_tf.models.tcn import TemporalConfig

    if isinstance(config, ElmoConfig):
        boxes, lines = [("character CNN", "#d9c5e8", 44)], ["h0 = [words, words]"]
        for i in range(1, config.num_layers + 1):
            boxes.append(("LSTM forward | LSTM backward", "#b5dfb1", 44))
            before = f"h{i - 1} + " * (i > 1)
            lines.append(f"h{i} = {before}[forward_{i}, backward_{i}](h{i - 1})")
        return drawn(boxes, lines)
    if isinstance(config, TemporalConfig):
        boxes, lines = [], []
        for i in range(len(config.widths)):
            boxes.append((f"2 causal convolutions, dilation {2**i}", "#a9cce3", 44))
            lines.append(f"x = relu(x + conv(conv(x, {2**i}), {2**i}))")
        return drawn(boxes, lines)
    scheme = config.splittings[0]
    if not isinstance(config, EncoderDecoderConfig):
        return layer(config, scheme, "causal " * config.causal)
    decoder = []  # attends the encoder's output after each look at its own tokens
    for step in steps_of(scheme):
        for mix in step:
            memory = Mix("memory", mix.step_size, beside=len(step) > 1)
            decoder += [mix, memory] if mix.operator == "tokens" else [mix]
    first = "**Encoder**\n\n" + layer(config, scheme, "")
    return first + "\n**Decoder**\n\n" + layer(config, decoder, "causal ")


def layer(config, scheme, causal: str) -> str:
    """A picture of the operators, the first one at the bottom, and a line of code for each step."""
    from macaron_tf.layers.scheme import steps_of

    attention = "relative attention" if config.relative else "attention"
    gated = ("gated MLP", "#d9c5e8")
    named = {
        "tokens": {"gmlp": gated, "amlp": gated}.get(config.block, (causal + attention, "#f4c78e")),
        "memory": ("attention to the source", "#f7dfa5"),
        "channels": {"swish_rnn": ("SwishRNN", "#b5dfb1")}.get(
            config.block, ("feed-forward", "#a9cce3")
        ),
    }
    lines, boxes = [], []
    given = "norm(x)" if config.norm == "pre" else "x"
    for step in steps_of(scheme):
        terms, names = ["x"], []
        for mix in step:
            name, colour = named[mix.operator]
            factor = "" if mix.step_size == 1 else f"{mix.step_size:g} * "
            terms.append(f"{factor}{re.sub('[ -]', '_', name)}({given})")
            share = "" if mix.step_size == 1 else f"{fractions.Fraction(mix.step_size)} "
            names.append(f"{share}{name}")
        total = " + ".join(terms)
        lines.append(f"x = {total if config.norm == 'pre' else f'norm({total})'}")
        boxes.append((" | ".join(names), colour, 16 + 28 * max(abs(mix.step_size) for mix in step)))
    return drawn(boxes, lines)


def drawn(boxes: list[tuple[str, str, float]], lines: list[str]) -> str:
    """A picture of boxes (text, colour, height), the first one at the bottom, beside its code."""
    parts, y = [], 10.0
    for text, colour, height in reversed(boxes):
        parts.append(
            f'<path d="M120 {y}v12"/><rect x="1" y="{y + 12}" width="238" height="{height}" '
            f'rx="6" fill="{colour}"/><text x="120" y="{y + 17 + height / 2}">{text}</text>'
        )
        y += 12 + height
    parts.append(f'<path d="M120 {y}v12"/>')
    svg = f'<svg viewBox="0 0 240 {y + 12}" width="240" role="img">{"".join(parts)}</svg>'
    code = "\n".join(lines)
    return f'<div class="layer" markdown>\n{svg}\n\n```python\n{code}\n```\n\n</div>\n'


# References.


# Parts of a module's name; the file and the title of the page with the settings under it.
GROUPS = {
    "experiments.recipe experiments.epochs experiments.pretrain": ("recipes", "Pre-training"),
    "experiments.translate": ("translation", "Translation"),
    "experiments.finetune experiments.embed experiments.text_to_text": (
        "fine_tuning",
        "Fine-tuning",
    ),
    "experiments.elmo experiments.tcn macaron_tf.models.elmo macaron_tf.models.tcn": (
        "elmo_tcn",
        "ELMo and TCN",
    ),
    "macaron_tf.layers": ("blocks", "Blocks"),
    "macaron_tf.models.config": ("models", "Models"),
    "macaron_tf.training": ("training", "Training"),
    "macaron_tf.data macaron_tf.text": ("data", "Text, tables and batches"),
    "macaron_tf.decoding macaron_tf.evaluation": ("decoding", "Decoding and scores"),
    "macaron_tf.objectives": ("objectives", "Objectives"),
    "macaron_tf.tasks": ("tasks", "Tasks"),
    "export": ("server", "Server"),
}
SETTINGS = ("experiments.registry", "experiments.finetune.run", "experiments.embed.run")
SETTINGS += ("experiments.text_to_text.run", "experiments.translate.evaluate")
SETTINGS += ("macaron_tf.data.tasks.own_tables", "export.server.config")


def settings_classes() -> list[type]:
    """Every class of settings; bases before what extends them."""
    from macaron_tf.settings import Settings

    for name in SETTINGS:
        importlib.import_module(name)
    importlib.import_module("experiments.registry").names()  # imports the recipes

    def below(cls) -> list[type]:
        found = [one for child in cls.__subclasses__() for one in (child, *below(child))]
        return [one for one in found if re.match("macaron_tf|experiments|export", one.__module__)]

    return list(dict.fromkeys(below(Settings)))


def settings_pages() -> dict[str, str]:
    """An index of all settings, and a page for each of `GROUPS`, a heading for each setting."""
    from experiments.recipe import Recipe
    from macaron_tf.models import EncoderConfig, EncoderDecoderConfig

    known, paths = settings_classes(), {}
    for cls in known:
        if issubclass(cls, Recipe):
            note_paths(cls, "", paths)
    for cls in (EncoderConfig, EncoderDecoderConfig):
        note_paths(cls, "model.", paths)
    page_of = {
        cls: slug
        for modules, (slug, _) in GROUPS.items()
        for cls in known
        if cls.__module__.startswith(tuple(modules.split()))
    }
    index = [
        "# Every setting\n\n`--set PATH=VALUE` replaces a setting, and `python -m "
        "experiments.pretrain settings RECIPE [WORD]` prints a recipe's with their values. These "
        "pages are made from the classes that hold the settings; a class has the settings of its "
        "bases too. [Recipes, settings, runs](../settings.md) is the guide.\n"
    ]
    pages = {}
    for slug, title in GROUPS.values():
        classes = [cls for cls, page in page_of.items() if page == slug]
        links = ", ".join(
            f"[{cls.__name__}](settings/{slug}.md#{cls.__name__.lower()})" for cls in classes
        )
        index.append(f"- [{title}](settings/{slug}.md): {links}")
        parts = [f"# Settings: {title}\n"]
        parts += [settings_of(cls, sorted(paths.get(cls, ())), page_of) for cls in classes]
        pages[f"{REFERENCE}settings/{slug}.md"] = "\n".join(parts)
    return {f"{REFERENCE}settings.md": "\n".join(index) + "\n", **pages}


def settings_of(cls: type, places: list[str], page_of: dict[type, str]) -> str:
    """The settings of a class, each with the part of its path that all of `places` share."""
    from macaron_tf.settings import describe

    bases = [
        f"[{base.__name__}]({page_of[base]}.md#{base.__name__.lower()})"
        for base in cls.__bases__
        if base in page_of
    ]
    also = f" Also the settings of {', '.join(bases)}." if bases else ""
    parts = [f"## {cls.__name__}\n\n{inspect.getdoc(cls).splitlines()[0]}{also}\n"]
    if len(places) > 1:
        parts.append(f"Under {' and '.join(f'`{place}`' for place in places)}.\n")
    path = common_end(places)
    own = vars(cls).get("__annotations__", {})
    for item in describe(cls):
        if item.name in own:
            default = f"; default `{item.default}`" if item.default else ""
            text = f"{item.text[:1].upper()}{item.text[1:]} *Value:* {item.range}{default}."
            anchor = f"{cls.__name__}.{item.name}".lower()
            parts.append(f"### `{path}{item.name}` {{ #{anchor} }}\n")
            parts.append(text.replace("<", "&lt;") + "\n")
    return "\n".join(parts)


def common_end(places: list[str]) -> str:
    """The last parts that all paths share: "batching." of "data.batching." and "batching."."""
    parts = zip(*(reversed(place.split(".")[:-1]) for place in places), strict=False)
    shared = [same[0] for same in itertools.takewhile(lambda same: len({*same}) == 1, parts)]
    return "".join(f"{part}." for part in reversed(shared))


def note_paths(cls: type, path: str, paths: dict[type, set[str]]) -> None:
    """Notes the paths under which a class's fields are set, its bases' and its parts' included."""
    from macaron_tf.settings import hints_of

    for base in cls.__mro__:
        paths.setdefault(base, set()).add(path)
    for name, hint in hints_of(cls).items():
        if dataclasses.is_dataclass(hint):
            note_paths(hint, f"{path}{name}.", paths)


def commands_pages() -> dict[str, str]:
    """An index of all commands, and a page for the help of each command and sub-command."""
    from macaron_tf.command_names import COMMANDS

    index = [
        "# Every command\n\nMade from `--help`. An installed package has `macaron TITLE`, such as "
        "`macaron export`, in place of `python -m MODULE`.\n"
    ]
    pages = {}
    for name, (module, text) in COMMANDS.items():
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(f"{module}.__main__").__name__
        main = importlib.import_module(module).main
        whole = help_of(main, [])
        found = re.search(r"COMMAND\n((?:    .*\n)+)", whole)
        subs = re.findall(r"^    ([\w-]+)", found[1], re.M) if found else []
        links = ", ".join(f"[{sub}](commands/{name}-{sub}.md)" for sub in subs)
        index.append(f"- [{name}](commands/{name}.md): {text}" + (f": {links}" if subs else ""))
        pages[f"{REFERENCE}commands/{name}.md"] = (
            f"# {name}\n\n{text[0].upper()}{text[1:]}.\n\n"
            + (f"Sub-commands: {links.replace('commands/', '')}.\n\n" if subs else "")
            + fenced(whole)
        )
        for sub in subs:
            shown = f"# {name} {sub}\n\n{fenced(help_of(main, [sub]))}"
            pages[f"{REFERENCE}commands/{name}-{sub}.md"] = shown
    return {f"{REFERENCE}commands.md": "\n".join(index) + "\n", **pages}


def help_of(main, words: list[str]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return out.getvalue()


def fenced(text: str) -> str:
    return f"````text\n{text.rstrip()}\n````\n"


def exported(place: str) -> list[str]:
    """The names of a room: its `__all__`, those that its package imports, or its module defines."""
    module = importlib.import_module(place)
    names = {name: getattr(module, name) for name in getattr(module, "__all__", vars(module))}

    def of_room(value) -> bool:
        home = getattr(value, "__module__", None) or ""
        if hasattr(module, "__path__"):
            return home.startswith("macaron_tf") or type(value) in (dict, tuple)
        return home == place

    return [name for name, value in names.items() if name[0] != "_" and of_room(value)]


def api_page(room: str) -> str:
    """The reference of a room."""
    place = f"macaron_tf.{room}".rstrip(".")
    options = "{members: false, show_root_heading: false, show_root_toc_entry: false}"
    whole = f"# {place}\n\n::: {place}\n    options: {options}\n"
    return whole + "".join(f"\n::: {place}.{name}\n" for name in exported(place))
