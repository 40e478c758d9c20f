"""The site that `make docs` has built: complete, closed in itself, and found by its search."""

import ast
import dataclasses
import html.parser
import importlib
import json
import pathlib
import re
import sys
import urllib.parse

import pytest

lunr = pytest.importorskip("lunr", reason="the tools of docs/requirements.txt: see `make docs`")

ROOT = pathlib.Path(__file__).parents[1]
SITE = ROOT / "site"
if not SITE.is_dir():
    pytest.skip("no site/: `make docs` builds it", allow_module_level=True)
PACKAGES = ("layers", "models", "objectives", "training", "decoding", "text", "kernels")
PACKAGES += ("distribution", "interop")


class Page(html.parser.HTMLParser):
    """The ids of a page, its links, and the files that a browser fetches for it."""

    def __init__(self, path: pathlib.Path):
        super().__init__()
        self.path, self.ids, self.links, self.assets = path, set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("next", "prev", "canonical"):
            self.assets.append(given["href"])
        elif tag in ("script", "img", "iframe", "source", "audio", "video") and given.get("src"):
            self.assets.append(given["src"])


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
        found = re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*\)", sheet.read_text("utf-8"))
        assert not found, (sheet, found)


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
    text = (SITE / "docs/reference/settings.html").read_text(encoding="utf-8")
    parts = re.split(r'<h3 id="', text)
    sections = {part.partition('"')[0]: part for part in parts[1:]}
    for cls in hook.settings_classes():
        for field in dataclasses.fields(cls):
            owner = next(c for c in cls.__mro__ if field.name in vars(c).get("__annotations__", {}))
            assert re.search(
                rf"<code>(?:\w+\.)*{field.name}</code>", sections[owner.__name__.lower()]
            ), (cls, field.name)


def test_every_public_name_has_an_entry(pages):
    ids = set().union(*(page.ids for page in pages.values()))
    names = {"macaron_tf.load", "macaron_tf.build"}
    for room in PACKAGES:
        tree = ast.parse((ROOT / "macaron_tf" / room / "__init__.py").read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module != "macaron_tf.errors":
                names |= {f"macaron_tf.{room}.{alias.asname or alias.name}" for alias in node.names}
    assert len(names) > 100
    assert not names - ids - {"macaron_tf.models.catalog"}  # a page


def test_every_model_and_recipe_is_on_one_systems_page():
    from experiments import registry
    from macaron_tf.models import catalog

    text = [p.read_text(encoding="utf-8") for p in (SITE / "docs/systems").glob("*.html")]
    for name in catalog.names():
        assert sum(f"<td><code>{name}</code></td>" in page for page in text) == 1, name
    for name in registry.names():
        assert sum(f'<h3 id="{name}">' in page for page in text) == 1, name


# A question as it is typed, and the page that answers it, among the first three.
QUESTIONS = {
    "own labels": "docs/own_table.html",
    "own block": "docs/own_block.html",
    "resume": "docs/settings.html#stop-and-resume",
    "several GPUs": "docs/devices.html",
    "bfloat16 on this CPU": "docs/devices.html#bfloat16",
    "what is in a run's folder": "docs/settings.html#what-is-in-a-runs-folder",
    "which weights": "docs/other_libraries.html#which-weights-to-start-from",
    "export": "docs/serving.html",
    "serve": "docs/serving.html",
    "cite": "docs/systems.html#cite",
}


@pytest.fixture(scope="module")
def search():
    """The pages for a query, as the theme's search ranks them: beginnings of words, not stems.

    A word in a title counts a thousandfold, a section with all words of the query twice, and the
    sections of a page are one hit.
    """
    index = json.loads((SITE / "search/search_index.json").read_text(encoding="utf-8"))
    builder = lunr.get_default_builder()
    for pipeline in (builder.pipeline, builder.search_pipeline):
        pipeline.reset()
        pipeline.add(lunr.trimmer.trimmer)
    builder.ref("location")
    builder.field("title", boost=1000)
    builder.field("text")
    for one in index["docs"]:
        plain = {name: re.sub("<.*?>", " ", one[name]) for name in ("title", "text")}
        builder.add({"location": one["location"], **plain}, {"boost": one.get("boost", 1)})
    found = builder.build()

    def ask(question: str) -> list[str]:
        words = re.findall(r"\w+", question.lower())
        scores = {}
        for hit in found.search(" ".join(f"{word}*" for word in words)):
            terms = hit["match_data"].metadata
            whole = all(any(term.startswith(word) for term in terms) for word in words)
            page = hit["ref"].partition("#")[0]
            scores[page] = max(scores.get(page, 0), hit["score"] * (1 + whole))
        return sorted(scores, key=scores.get, reverse=True)

    return ask


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_finds_its_answer(search, question):
    page, _, section = QUESTIONS[question].partition("#")
    assert page in search(question)[:3]
    assert not section or f'id="{section}"' in (SITE / page).read_text(encoding="utf-8")
