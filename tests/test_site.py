"""Tests of the site built by `make docs`: its pages, links and search."""

import ast
import dataclasses
import html.parser
import importlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

import pytest

pytest.importorskip("mkdocs", reason="the tools of docs/requirements.txt: see `make docs`")

ROOT = pathlib.Path(__file__).parents[1]
SITE = ROOT / "site"
SETTINGS = SITE / "docs/reference/settings"
if not SITE.is_dir():
    pytest.skip("no site/: `make docs` builds it", allow_module_level=True)
PACKAGES = ("layers", "models", "objectives", "training", "decoding", "text", "kernels")
PACKAGES += ("distribution", "interop")


class Page(html.parser.HTMLParser):
    """The ids, links and fetched files of an HTML page."""

    def __init__(self, path: pathlib.Path):
        super().__init__()
        self.path, self.ids, self.links, self.assets = path, set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif tag == "link" and attributes.get("rel") not in ("next", "prev", "canonical"):
            self.assets.append(attributes["href"])
        elif tag in ("script", "img", "iframe", "source", "audio", "video") and attributes.get(
            "src"
        ):
            self.assets.append(attributes["src"])


@pytest.fixture(scope="module")
def pages() -> dict[pathlib.Path, Page]:
    return {path: Page(path) for path in sorted(SITE.rglob("*.html"))}


@pytest.fixture(scope="module")
def hook():
    sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module("site_pages")


def test_pages_ask_no_other_host(pages):
    outside = {
        asset for page in pages.values() for asset in page.assets if re.match(r"(\w+:)?//", asset)
    }
    assert outside <= {asset for asset in outside if asset.startswith("data:")}
    for sheet in SITE.rglob("*.css"):
        urls = re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*\)", sheet.read_text("utf-8"))
        assert not urls, (sheet, urls)


def test_links_within_the_site_lead_somewhere(pages):
    broken = []
    for path, page in pages.items():
        for link in (*page.links, *page.assets):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (
                (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            )
            target = target / "index.html" if target.is_dir() else target
            anchor = urllib.parse.unquote(parts.fragment)
            if not target.exists() or (
                anchor and target in pages and anchor not in pages[target].ids
            ):
                broken.append((path.relative_to(SITE).as_posix(), link))
    assert not broken


def test_every_setting_is_explained(hook):
    ids = set().union(*(Page(path).ids for path in SETTINGS.glob("*.html")))
    for cls in hook.settings_classes():
        for field in dataclasses.fields(cls):
            owner = next(c for c in cls.__mro__ if field.name in vars(c).get("__annotations__", {}))
            assert f"{owner.__name__}.{field.name}".lower() in ids, (cls, field.name)


def test_every_public_name_has_an_entry(pages):
    ids = set().union(*(page.ids for page in pages.values()))
    names = {"macaron_tf.load", "macaron_tf.build"}
    for package in PACKAGES:
        tree = ast.parse(
            (ROOT / "macaron_tf" / package / "__init__.py").read_text(encoding="utf-8")
        )
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module != "macaron_tf.errors":
                names |= {
                    f"macaron_tf.{package}.{alias.asname or alias.name}" for alias in node.names
                }
    assert len(names) > 100
    assert not names - ids - {"macaron_tf.models.catalog"}  # a page of its own


def test_every_model_and_recipe_is_on_one_systems_page():
    from experiments import registry
    from macaron_tf.models import catalog

    text = [p.read_text(encoding="utf-8") for p in (SITE / "docs/systems").glob("*.html")]
    for name in catalog.names():
        assert sum(f"<td><code>{name}</code></td>" in page for page in text) == 1, name
    for name in registry.names():
        assert sum(f'<h3 id="{name}">' in page for page in text) == 1, name


# Search queries, and a page that must be among the first three results.
QUESTIONS = {
    "own labels": "docs/own_table.html",
    "own table": "docs/own_table.html",
    "own block": "docs/own_block.html",
    "resume": "docs/settings.html#stop-and-resume",
    "several GPUs": "docs/devices.html",
    "bfloat16 on this CPU": "docs/devices.html#bfloat16",
    "what is in a run's folder": "docs/settings.html#what-is-in-a-runs-folder",
    "which weights": "docs/other_libraries.html#which-weights-to-start-from",
    "export": "docs/serving.html",
    "serve": "docs/serving.html",
    "cite": "docs/systems.html#cite",
    "how many rows": "docs/own_table.html#how-many-rows-and-epochs",
    "ONNX": "docs/engines.html",
    "OpenNMT": "docs/from_opennmt.html",
    "compare two blocks": "docs/compare.html",
    "out of memory": "docs/errors.html#out-of-memory-not-a-number",
}


# Setting names as search queries, and the page of each.
NAMES = {
    "label_smoothing": "translation fine_tuning decoding objectives",
    "training.max_steps": "training",
    "learning_rate": "training",
    "training.optimizer": "training",
    "dtype_policy": "training",
    "accumulation_steps": "training",
    "ema_decay": "training",
    "model.scheme": "blocks",
    "model.dropout": "blocks",
    "positions": "blocks",
    "num_layers": "models elmo_tcn",
    "corpus.sources": "data",
    "table.held_out": "data",
    "batching.max_tokens": "data",
    "isolate_documents": "recipes",
    "vocabulary.size": "recipes",
    "beam_size": "decoding",
    "length_penalty": "decoding",
    "masking": "recipes objectives",
    "max_queue": "server",
}


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """Returns a dict mapping queries to the pages that the theme's search finds, best first."""
    [worker] = SITE.glob("assets/javascripts/workers/search.*.min.js")
    index = SITE / "search/search_index.json"
    command = ["node", str(pathlib.Path(__file__).with_name("search_site.js")), worker, index]
    ran = subprocess.run([*command, *QUESTIONS, *NAMES], capture_output=True, check=True)
    answers = json.loads(ran.stdout)
    return {query: [hit.partition("#")[0] for hit in hits] for query, hits in answers.items()}


needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node runs the site's search")


@needs_node
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_finds_its_answer(found, question):
    page, _, section = QUESTIONS[question].partition("#")
    assert page in found[question][:3]
    assert not section or f'id="{section}"' in (SITE / page).read_text(encoding="utf-8")


@needs_node
@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_found_in_the_reference_first(found, name):
    pages = [f"docs/reference/settings/{page}.html" for page in NAMES[name].split()]
    assert found[name][0] in pages


def test_pages_of_the_reference_are_short():
    """No settings page has more than 65 settings, and no command page has more than 110 lines."""
    for path in SETTINGS.glob("*.html"):
        assert path.read_text(encoding="utf-8").count("<h3 id=") <= 65, path
    for path in (SITE / "docs/reference/commands").glob("*.html"):
        text = re.search(r"<pre>.*?</pre>", path.read_text(encoding="utf-8"), re.S)[0]
        assert text.count("\n") <= 110, path
