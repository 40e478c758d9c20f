"""The default corpus: user-interface texts of Home Assistant in 65 languages.

The wheel `homeassistant` (Apache-2.0) contains the files `components/*/translations/LANG.json`. Two
texts with the same key are translations of each other. English and German have 24,625 distinct
pairs of short technical sentences. English and French have 11,129.
"""

import collections
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator

from macaron_tf.errors import UserError
from macaron_tf.io.files import cache_directory
from macaron_tf.io.paths import clear_errors, file_digest

HOMEASSISTANT_VERSION = "2026.2.3"
HOMEASSISTANT_SHA256 = "8167820cac4b8defe895fd2c36ac23402a445d1fe6028e8cde24caabb935282c"
SPLITS = ("train", "validation", "test")
FORMAT = 1  # part of cache keys; increase this number if pairs, documents or splits change

_WHEEL = f"homeassistant-{HOMEASSISTANT_VERSION}-py3-none-any.whl"
_MEMBER = "homeassistant/components/{}/translations/{}.json"  # component and language
# Placeholders, web addresses and markup do not count as words.
_UNTRANSLATED = re.compile(r"\{[^{}]*\}|https?://\S+|<[^<>]*>")


def read_homeassistant(
    language: str, split: str, pair: tuple[str, str] | None = None
) -> list[tuple[str, str]] | list[str]:
    """Reads the documents in `language`, or the translation pairs of the two languages `pair`.

    Args:
        language: language code after "homeassistant:" in the name of the source. For pairs, this
            code must equal the one of `pair` that is not "en", or be empty.
    """
    if split not in SPLITS:
        raise UserError(f"homeassistant has no split {split!r}: give one of {', '.join(SPLITS)}")
    if pair is None:
        return wheel_documents(fetch_homeassistant(), language)[split]
    others = [code for code in pair if code != "en"]
    if len(others) != 1 or language not in ("", *others):
        raise UserError(f"homeassistant:{language} has no pairs of {pair}: pair with 'en'")
    pairs = wheel_pairs(fetch_homeassistant(), others[0])[split]
    return pairs if pair[0] == "en" else [(target, english) for english, target in pairs]


def fetch_homeassistant() -> pathlib.Path:
    """Downloads the wheel to the cache with `pip download`, unless the cache already has it."""
    folder = cache_directory()
    wheel = folder / _WHEEL
    # If the file in the cache is damaged or has another version, it is downloaded again.
    if wheel.is_file() and file_digest(wheel) == HOMEASSISTANT_SHA256:
        return wheel
    with clear_errors(f"cannot write to {folder}", "set MACARON_TF_CACHE to a folder of 120 MB"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder) as temporary_folder:
            downloaded = _pip_download(temporary_folder)
            if file_digest(downloaded) != HOMEASSISTANT_SHA256:
                raise UserError(f"{_WHEEL} has an unexpected SHA-256: check pip's index")
            os.replace(downloaded, wheel)
    return wheel


def wheel_pairs(wheel: str | os.PathLike, language: str) -> dict[str, list[tuple[str, str]]]:
    """Reads the pairs of English and another language from a wheel, and splits the pairs.

    Pairs whose English sentences are equal, ignoring case, are in the same split. The validation
    and test splits have only the most frequent translation of each English sentence. A pair is left
    out if its sides are equal, or if a side has no words.
    """
    counts: dict[str, collections.Counter] = {}
    for texts in _components(wheel, language):
        for pair in texts:
            if _is_translation(*pair):
                counts.setdefault(pair[0].casefold(), collections.Counter())[pair] += 1
    splits: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for key, group in counts.items():
        split = _split_of(key)
        splits[split].extend(group if split == "train" else [group.most_common(1)[0][0]])
    return splits


def wheel_documents(wheel: str | os.PathLike, language: str) -> dict[str, list[str]]:
    """Reads the texts of one language from a wheel as documents.

    A document has the texts of one component of Home Assistant, one text per line, in the order of
    the component's file. The English text with the same key determines the split, as in
    `wheel_pairs`. A component with texts in several splits has one document in each of these
    splits. Texts without words are left out. In languages other than English, texts that equal
    their English text or have no English text are left out as well.
    """
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    for texts in _components(wheel, language):
        lines: dict[str, list[str]] = {split: [] for split in SPLITS}
        for english, text in texts:
            if _has_words(text) if language == "en" else _is_translation(english, text):
                lines[_split_of(english.casefold())].append(text)
        for split, split_lines in lines.items():
            if split_lines:
                splits[split].append("\n".join(split_lines))
    return splits


def _components(wheel: str | os.PathLike, language: str) -> Iterator[list[tuple[str, str]]]:
    """Yields a list of (English, other) texts for each component of Home Assistant."""
    pattern = re.compile(_MEMBER.format("([^/]+)", "([^/]+)"))
    with zipfile.ZipFile(wheel) as archive:
        found = {match.groups() for match in map(pattern.fullmatch, archive.namelist()) if match}
        components = {name for name, code in found if code == language and (name, "en") in found}
        if not components:
            raise UserError(f"homeassistant has no language {language!r}: give a code such as 'de'")
        for name in sorted(components):
            contents = (archive.read(_MEMBER.format(name, code)) for code in ("en", language))
            english, texts = (dict(_flatten(json.loads(content))) for content in contents)
            yield [(english.get(key, ""), text) for key, text in texts.items()]


def _split_of(key: str) -> str:
    """Returns an English text's split by its hash: 2% test, 2% validation and 96% train."""
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    return "test" if bucket < 2 else "validation" if bucket < 4 else "train"


def _is_translation(english: str, other: str) -> bool:
    """Returns whether two texts differ and both have words.

    Of 25,579 distinct German pairs, 903 have equal sides, such as product names and units.
    """
    return english != other and _has_words(english) and _has_words(other)


def _has_words(text: str) -> bool:
    return any(map(str.isalpha, _UNTRANSLATED.sub("", text)))


def _flatten(node, path: tuple = ()) -> Iterator[tuple[tuple, str]]:
    """Yields the path of each text in nested dicts and lists, and the text as one line."""
    if isinstance(node, str):
        yield path, " ".join(node.split())
    elif isinstance(node, dict | list):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _flatten(child, (*path, key))


def _pip_download(folder: str) -> pathlib.Path:
    """Downloads the wheel into a folder with pip, and returns its path."""
    options = "--no-deps --only-binary=:all: --python-version 3.14 --progress-bar off --retries 2"
    options += f" --timeout 15 --disable-pip-version-check homeassistant=={HOMEASSISTANT_VERSION}"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", folder]
    print(f"downloading homeassistant {HOMEASSISTANT_VERSION} (51 MB)", file=sys.stderr, flush=True)
    run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    downloaded = pathlib.Path(folder) / _WHEEL
    if run.returncode or not downloaded.is_file():
        [*_, reason] = ["no output", *(run.stdout + run.stderr).strip().splitlines()]
        failure = f"pip could not download {_WHEEL} ({reason[:200]})"
        raise UserError(f"{failure}: put it into {cache_directory()}")
    return downloaded
