"""MkDocs hook that makes the site of the documentation.

Pages have the same paths as in the repository, so that links work on the site and on a git host.
The pages are README.md, docs/, the results, and the Python files that a page links to. The hook
generates the following text from the code: the layer, models and recipes of each system (at the end
of the pages in docs/systems/), the settings, the help of the commands, and the API reference.
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
)
PACKAGES = ("", "layers", "models", "objectives", "training", "decoding", "text", "kernels")
PACKAGES += ("distribution", "interop", "interop.keras_hub", "layers.mixer", "layers.watching")
PACKAGES += ("models.catalog", "objectives.base", "tasks")
OVERVIEW = "docs/systems.md"
CLAIMS = "docs/claims.md"
# Markdown code block, whose lines are indented by four spaces.
REFERENCE = "docs/reference/"
# Search boosts of the guides and the settings, so that they rank above the API and the results.
# The settings of models are asked for most; their short words stand in many other settings' names.
GUIDE_BOOST, SETTING_BOOST, MODEL_SETTING_BOOST = 20, 21, 30
LINK = re.compile(r"\]\(([^)#\s]+\.py)\)")


class SourcePage(File):
    """A Python file as a page."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config) -> Files:
    """Returns the files of the site, which have their paths in the repository."""
    paths = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern)) if path.is_file()]
    names = [
        path.relative_to(ROOT).as_posix() for path in paths if path.suffix not in (".py", ".txt")
    ]
    names += {
        posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
        for name in names
        if name.endswith(".md")
        for target in LINK.findall((ROOT / name).read_text(encoding="utf-8"))
    }
    names.append("macaron_tf/models/catalog.py")
    settings, commands = settings_pages(), commands_pages()
    packages = {
        f"{REFERENCE}{package or 'macaron_tf'}.md": api_page(package) for package in PACKAGES
    }
    # Keeps the files of the theme. The files of docs/ are added again with their paths in the
    # repository.
    site_files = [file for file in files if file.src_dir != config.docs_dir]
    for name in names:
        page_class = SourcePage if name.endswith(".py") else File
        site_files.append(page_class(name, str(ROOT), config.site_dir, config.use_directory_urls))
    generated = {**settings, **commands, **packages}
    site_files += [File.generated(config, name, content=text) for name, text in generated.items()]
    systems = re.findall(r"\((systems/\w+\.md)\)", (ROOT / OVERVIEW).read_text(encoding="utf-8"))
    systems = [OVERVIEW, *(f"docs/{name}" for name in dict.fromkeys(systems))]
    lists = {"SYSTEMS": systems, "SETTINGS": settings, "COMMANDS": commands, "API": packages}
    fill(config.nav, {name: list(pages) for name, pages in lists.items()})
    return Files(site_files)


def fill(nav: list, lists: dict[str, list[str]]) -> None:
    """Replaces each name of a list in the navigation with the pages of this list, in place."""
    for entry in nav:
        for title, value in entry.items() if isinstance(entry, dict) else ():
            if isinstance(value, list):
                fill(value, lists)
            else:
                entry[title] = lists.get(value, value)


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Returns the text of a page, with the parts that are generated from the code."""
    name = page.file.src_uri
    guide = name == OVERVIEW or (page.parent and page.parent.title in ("Start", "Guides"))
    setting = name.startswith(f"{REFERENCE}settings/")
    boost = GUIDE_BOOST if guide else SETTING_BOOST if setting else 1
    if name == f"{REFERENCE}settings/blocks.md":
        boost = MODEL_SETTING_BOOST
    page.meta["search"] = {"boost": boost}
    if name.endswith(".py"):
        page.meta |= {"search": {"exclude": True}, "hide": ["toc"]}
        return f"# {name}\n\n````python\n{markdown}\n````\n"
    if name.startswith("docs/systems/"):
        markdown += "\n" + system(page.meta)
    return markdown


# Pages of the systems.


def system(meta: dict) -> str:
    """Returns the generated part of a system's page: results, a layer, models and recipes.

    Args:
        meta: metadata at the top of the page, which select the claims, the layer, the models and
            the recipes.
    """
    from experiments import registry
    from macaron_tf.models import catalog

    models, recipes = (
        [
            name
            for pattern in meta.get(key, "").split()
            for name in fnmatch.filter(all_names, pattern)
        ]
        for key, all_names in (("models", catalog.names()), ("recipes", registry.names()))
    )
    sections = []
    if meta.get("claims"):
        text = (ROOT / CLAIMS).read_text(encoding="utf-8").replace("](../", "](../../")
        rows = re.findall(rf"^\| {meta['claims']}.*$", text, re.MULTILINE)
        columns = "claim", "the slides' number", "ours", "seeds; learning rates", "p", "verdict"
        head = f"| {' | '.join((*columns, 'page'))} |\n{'|---' * 7}|"
        sections.append("\n".join(["## Comparison with the slides\n", head, *rows, ""]))
    if meta.get("layer"):
        sections.append("## A layer\n\n" + layers(catalog.config(meta["layer"])))
    if models:
        sections.append(
            "## Models\n\n`macaron_tf.build(NAME)` builds a model, and `--set model=NAME` "
            "selects a model in a recipe. D is the hidden width, and F is the feed-forward width. "
            "[catalog.py](../../macaron_tf/models/catalog.py) gives the sources of the sizes.\n\n"
            + markdown_table(
                ("name", "parameters", "D", "F", "heads", "layers"), map(model_row, models)
            )
        )
    if recipes:
        sections.append(
            "## Recipes\n\nEach description gives the sources of the recipe's numbers.\n\n"
            + "\n".join(map(recipe_text, recipes))
        )
    return "\n".join(sections)


def markdown_table(head, rows) -> str:
    lines = ["|" + "|".join(head) + "|", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("|" + "|".join(map(str, row)) + "|" for row in rows)]) + "\n"


def model_row(name: str) -> tuple:
    """Returns the table row of a catalog model, without allocating the weights of the model."""
    import keras

    from macaron_tf.models import catalog

    with keras.StatelessScope(initialize_variables=False):
        count = sum(math.prod(weight.shape) for weight in catalog.build(name).weights)
    config = catalog.config(name)
    depths = [getattr(config, f"num_{part}layers", None) for part in ("", "encoder_", "decoder_")]
    sizes = (
        getattr(config, field, "") for field in ("hidden_dim", "feed_forward_dim", "num_heads")
    )
    return f"`{name}`", f"{count:,}", *sizes, " + ".join(str(n) for n in depths if n)


def recipe_text(name: str) -> str:
    from experiments import registry

    recipe, (text, _) = registry.load(name), registry.documentation(name)
    first, _, rest = text.partition("\n")
    command = f"{recipe.command} train {name} runs/{name}"
    command += " --data FILE" if recipe.kind == "tcn" else " --data-dir DIR"
    if "\n    " in rest:  # the description of the recipe already has the command
        command = ""
    return f"### {name}\n\n{first}\n{rest}\n" + (f"\n    {command}\n" if command else "")


def layers(config) -> str:
    """Returns pictures and equations of the layers of a model configuration."""
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
        return picture(boxes, lines)
    if isinstance(config, TemporalConfig):
        boxes, lines = [], []
        for i in range(len(config.widths)):
            boxes.append((f"2 causal convolutions, dilation {2**i}", "#a9cce3", 44))
            lines.append(f"x = relu(x + conv(conv(x, {2**i}), {2**i}))")
        return picture(boxes, lines)
    scheme = config.splittings[0]
    if not isinstance(config, EncoderDecoderConfig):
        return layer(config, scheme, "causal " * config.causal)
    decoder = []  # attends to the encoder output after each self-attention
    for step in steps_of(scheme):
        for mix in step:
            memory = Mix("memory", mix.step_size, beside=len(step) > 1)
            decoder += [mix, memory] if mix.operator == "tokens" else [mix]
    first = "**Encoder**\n\n" + layer(config, scheme, "")
    return first + "\n**Decoder**\n\n" + layer(config, decoder, "causal ")


def layer(config, scheme, causal: str) -> str:
    """Returns a picture of a layer's operators, from bottom to top, and a line of code per step."""
    from macaron_tf.layers.scheme import steps_of

    attention = "relative attention" if config.relative else "attention"
    gated = ("gated MLP", "#d9c5e8")
    boxes_by_operator = {
        "tokens": {"gmlp": gated, "amlp": gated}.get(config.block, (causal + attention, "#f4c78e")),
        "memory": ("attention to the source", "#f7dfa5"),
        "channels": {"swish_rnn": ("SwishRNN", "#b5dfb1")}.get(
            config.block, ("feed-forward", "#a9cce3")
        ),
    }
    lines, boxes = [], []
    argument = "norm(x)" if config.norm == "pre" else "x"
    for step in steps_of(scheme):
        terms, names = ["x"], []
        for mix in step:
            name, colour = boxes_by_operator[mix.operator]
            factor = "" if mix.step_size == 1 else f"{mix.step_size:g} * "
            terms.append(f"{factor}{re.sub('[ -]', '_', name)}({argument})")
            share = "" if mix.step_size == 1 else f"{fractions.Fraction(mix.step_size)} "
            names.append(f"{share}{name}")
        total = " + ".join(terms)
        lines.append(f"x = {total if config.norm == 'pre' else f'norm({total})'}")
        boxes.append((" | ".join(names), colour, 16 + 28 * max(abs(mix.step_size) for mix in step)))
    return picture(boxes, lines)


def picture(boxes: list[tuple[str, str, float]], lines: list[str]) -> str:
    """Returns a picture of boxes from bottom to top, with lines of code beside the picture.

    Args:
        boxes: tuples (text, colour, height in pixels); the first box is at the bottom.
        lines: lines of code.
    """
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


# Reference pages.


# Dict mapping prefixes of module names, separated by spaces, to the file name and the title of the
# page with the settings in these modules.
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
    """Returns all classes of settings. A base class comes before its subclasses."""
    from macaron_tf.settings import Settings

    for name in SETTINGS:
        importlib.import_module(name)
    importlib.import_module("experiments.registry").names()  # imports the modules of recipes

    def subclasses_of(cls) -> list[type]:
        classes = [
            subclass
            for child in cls.__subclasses__()
            for subclass in (child, *subclasses_of(child))
        ]
        return [
            subclass
            for subclass in classes
            if re.match("macaron_tf|experiments|export", subclass.__module__)
        ]

    return list(dict.fromkeys(subclasses_of(Settings)))


def settings_pages() -> dict[str, str]:
    """Returns a dict mapping paths to pages: an index of all settings, and a page for each group.

    A page has a heading for each setting. `GROUPS` has the groups.
    """
    from experiments.recipe import Recipe
    from macaron_tf.models import EncoderConfig, EncoderDecoderConfig

    classes, prefixes = settings_classes(), {}
    for cls in classes:
        if issubclass(cls, Recipe):
            add_prefixes(cls, "", prefixes)
    for cls in (EncoderConfig, EncoderDecoderConfig):
        add_prefixes(cls, "model.", prefixes)
    page_of = {
        cls: slug
        for modules, (slug, _) in GROUPS.items()
        for cls in classes
        if cls.__module__.startswith(tuple(modules.split()))
    }
    index = [
        "# Every setting\n\n`--set PATH=VALUE` replaces a setting, and `macaron "
        "pretrain settings RECIPE [WORD]` prints the settings of a recipe with their "
        "values. These pages are generated from the classes of the settings. A class also has the "
        "settings of its base classes. [Recipes, settings, runs](../settings.md) is the guide.\n"
    ]
    pages = {}
    for slug, title in GROUPS.values():
        page_classes = [cls for cls, page in page_of.items() if page == slug]
        links = ", ".join(
            f"[{cls.__name__}](settings/{slug}.md#{cls.__name__.lower()})" for cls in page_classes
        )
        index.append(f"- [{title}](settings/{slug}.md): {links}")
        sections = [f"# Settings: {title}\n"]
        sections += [
            settings_of(cls, sorted(prefixes.get(cls, ())), page_of) for cls in page_classes
        ]
        pages[f"{REFERENCE}settings/{slug}.md"] = "\n".join(sections)
    return {f"{REFERENCE}settings.md": "\n".join(index) + "\n", **pages}


def settings_of(cls: type, prefixes: list[str], page_of: dict[type, str]) -> str:
    """Returns a section with the settings of a class.

    Args:
        cls: class of settings.
        prefixes: path prefixes of the class in recipes, such as "data.batching.". The headings have
            the last parts that all prefixes share.
        page_of: dict mapping each class to the file name of its page.
    """
    from macaron_tf.settings import describe

    bases = [
        f"[{base.__name__}]({page_of[base]}.md#{base.__name__.lower()})"
        for base in cls.__bases__
        if base in page_of
    ]
    bases_text = f" It also has the settings of {', '.join(bases)}." if bases else ""
    sections = [f"## {cls.__name__}\n\n{inspect.getdoc(cls).splitlines()[0]}{bases_text}\n"]
    if len(prefixes) > 1:
        sections.append(f"Path prefixes: {' and '.join(f'`{prefix}`' for prefix in prefixes)}.\n")
    shared_suffix = common_suffix(prefixes)
    own_fields = vars(cls).get("__annotations__", {})
    for item in describe(cls):
        if item.name in own_fields:
            default = f"; default `{item.default}`" if item.default else ""
            text = f"{item.text[:1].upper()}{item.text[1:]} *Value:* {item.range}{default}."
            anchor = f"{cls.__name__}.{item.name}".lower()
            sections.append(f"### `{shared_suffix}{item.name}` {{ #{anchor} }}\n")
            sections.append(text.replace("<", "&lt;") + "\n")
    return "\n".join(sections)


def common_suffix(prefixes: list[str]) -> str:
    """Returns the last parts that all prefixes share.

    For "data.batching." and "batching.", the result is "batching.".
    """
    parts = zip(*(reversed(prefix.split(".")[:-1]) for prefix in prefixes), strict=False)
    suffix = [names[0] for names in itertools.takewhile(lambda names: len({*names}) == 1, parts)]
    return "".join(f"{part}." for part in reversed(suffix))


def add_prefixes(cls: type, prefix: str, prefixes: dict[type, set[str]]) -> None:
    """Adds the path prefixes of a class, its base classes and its nested classes to `prefixes`.

    Args:
        cls: class of settings.
        prefix: path prefix of the class, such as "model.".
        prefixes: dict mapping each class to its path prefixes.
    """
    from macaron_tf.settings import hints_of

    for base in cls.__mro__:
        prefixes.setdefault(base, set()).add(prefix)
    for name, hint in hints_of(cls).items():
        if dataclasses.is_dataclass(hint):
            add_prefixes(hint, f"{prefix}{name}.", prefixes)


def commands_pages() -> dict[str, str]:
    """Returns a dict mapping paths to pages: an index of all commands, and the help of each one.

    A sub-command has a page of its own.
    """
    from macaron_tf.command_names import COMMANDS

    index = ["# Every command\n\nThese pages are generated from `--help`.\n"]
    pages = {}
    for name, (module, text) in COMMANDS.items():
        with contextlib.suppress(ModuleNotFoundError):
            module = importlib.import_module(f"{module}.__main__").__name__
        main = importlib.import_module(module).main
        help_text = help_of(main, [])
        match = re.search(r"COMMAND\n((?:    .*\n)+)", help_text)
        subcommands = re.findall(r"^    ([\w-]+)", match[1], re.M) if match else []
        links = ", ".join(
            f"[{subcommand}](commands/{name}-{subcommand}.md)" for subcommand in subcommands
        )
        index.append(
            f"- [{name}](commands/{name}.md): {text}" + (f": {links}" if subcommands else "")
        )
        pages[f"{REFERENCE}commands/{name}.md"] = (
            f"# {name}\n\n{text[0].upper()}{text[1:]}.\n\n"
            + (f"Sub-commands: {links.replace('commands/', '')}.\n\n" if subcommands else "")
            + fenced(help_text)
        )
        for subcommand in subcommands:
            pages[f"{REFERENCE}commands/{name}-{subcommand}.md"] = subcommand_page(
                name, subcommand, help_of(main, [subcommand]), help_text
            )
    return {f"{REFERENCE}commands.md": "\n".join(index) + "\n", **pages}


def subcommand_page(name: str, subcommand: str, text: str, command_text: str) -> str:
    """Returns the page of a sub-command's help, without the end that it shares with its command.

    All sub-commands of a command end with the same list of sources, up to 70 lines.
    """
    reversed_texts = [text[::-1], command_text[::-1]]
    # `commonprefix` takes any texts, although it is in `os.path`.
    shared = os.path.commonprefix(reversed_texts)[::-1].partition("\n\n")[2]  # noqa: RUF071
    page = f"# {name} {subcommand}\n\n{fenced(text.removesuffix(shared))}"
    return page + (f"\nThe rest is on the page [{name}]({name}.md).\n" if shared else "")


def help_of(main, arguments: list[str]) -> str:
    out, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "120"  # argparse asks for it; a page is wider than many terminals
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main([*arguments, "--help"])
    finally:
        os.environ.pop("COLUMNS")
        os.environ |= {"COLUMNS": columns} if columns else {}
    return out.getvalue()


def fenced(text: str) -> str:
    return f"````text\n{text.rstrip()}\n````\n"


def public_names(import_path: str) -> list[str]:
    """Returns the public names of a package or module.

    The names are those in `__all__`. Without `__all__`, a package has the names that it imports
    from this project, and a module has the names that it defines.
    """
    module = importlib.import_module(import_path)
    names = {name: getattr(module, name) for name in getattr(module, "__all__", vars(module))}

    def is_public(value) -> bool:
        home = getattr(value, "__module__", None) or ""
        if hasattr(module, "__path__"):
            return home.startswith("macaron_tf") or type(value) in (dict, tuple)
        return home == import_path

    return [name for name, value in names.items() if name[0] != "_" and is_public(value)]


def api_page(package: str) -> str:
    """Returns the API page of a package or module.

    Args:
        package: import path below `macaron_tf`; an empty string means `macaron_tf`.
    """
    import_path = f"macaron_tf.{package}".rstrip(".")
    options = "{members: false, show_root_heading: false, show_root_toc_entry: false}"
    page = f"# {import_path}\n\n::: {import_path}\n    options: {options}\n"
    return page + "".join(f"\n::: {import_path}.{name}\n" for name in public_names(import_path))
