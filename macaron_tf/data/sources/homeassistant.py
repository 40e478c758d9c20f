"""The default corpus: the user-interface texts of Home Assistant, in 65 languages.

The wheel `homeassistant` (Apache-2.0) has files `components/*/translations/LANG.json`. Texts of two
languages with the same key form about 24,000 distinct pairs of short, everyday technical sentences.
"""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator

from macaron_tf.errors import UserError
from macaron_tf.io.files import cache_directory
from macaron_tf.io.paths import file_digest

HOMEASSISTANT_VERSION = "2026.2.3"
HOMEASSISTANT_SHA256 = "8167820cac4b8defe895fd2c36ac23402a445d1fe6028e8cde24caabb935282c"
SPLITS = ("train", "validation", "test")
FORMAT = 1  # part of the keys of caches: increase it if the pairs, documents or splits change

_WHEEL = f"homeassistant-{HOMEASSISTANT_VERSION}-py3-none-any.whl"
_MEGABYTES = 51
_PATIENCE = 5  # seconds between lines about the progress of the download
_MEMBER = re.compile(r"homeassistant/components/([^/]+)/translations/([^/]+)\.json")
# Untranslatable: placeholders, web addresses, markup.
_UNTRANSLATED = re.compile(r"\{[^{}]*\}|https?://\S+|<[^<>]*>")


def read_homeassistant(
    language: str | None, split: str, source_lang: str, target_lang: str
) -> list[tuple[str, str]]:
    """Reads a split of the default corpus; the first call downloads its wheel (51 MB).

    Args:
        language: the language other than English; None: taken from the two languages below.
        split: "train" (96%), "validation" (2%) or "test" (2%).
        source_lang, target_lang: codes of the languages; exactly one is "en".

    Returns:
        (source, target) pairs.

    Raises:
        UserError: the language or split is unknown, not exactly one language is English, or the
            wheel cannot be downloaded.
    """
    _check_split(split)
    if (source_lang == "en") == (target_lang == "en"):
        raise UserError(
            f"homeassistant pairs English with another language, not {source_lang!r} with "
            f"{target_lang!r}: make exactly one of the two 'en'"
        )
    other = target_lang if source_lang == "en" else source_lang
    if language not in (None, other):
        raise UserError(
            f"homeassistant:{language} cannot give {source_lang!r} to {target_lang!r}: "
            f"change {other!r} to {language!r}, or write homeassistant:{other}"
        )
    pairs = wheel_pairs(fetch_homeassistant(), other)[split]
    return pairs if source_lang == "en" else [(target, english) for english, target in pairs]


def read_homeassistant_documents(language: str, split: str) -> list[str]:
    """Reads the documents of a split in one language, which may be "en"; see `wheel_documents`."""
    _check_split(split)
    return wheel_documents(fetch_homeassistant(), language)[split]


def fetch_homeassistant() -> pathlib.Path:
    """Downloads the wheel to the cache with `pip download`, and checks its SHA-256.

    Returns:
        The path of the wheel.

    Raises:
        UserError: the wheel cannot be downloaded or written, or its SHA-256 differs.
    """
    folder = cache_directory()
    wheel = folder / _WHEEL
    # A damaged or different file in the cache is downloaded again.
    if wheel.is_file() and file_digest(wheel) == HOMEASSISTANT_SHA256:
        return wheel
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder) as aside:
            fetched = _pip_download(pathlib.Path(aside), folder)
            digest = file_digest(fetched)
            if digest != HOMEASSISTANT_SHA256:
                raise UserError(
                    f"the downloaded {_WHEEL} has SHA-256 {digest}, not {HOMEASSISTANT_SHA256}: "
                    "check which package index pip is set to use"
                )
            os.replace(fetched, wheel)
    except OSError as error:
        raise UserError(
            f"cannot write the corpus to {folder}: {error.strerror or error}; "
            "set MACARON_TF_CACHE to a folder with 120 MB of free space"
        ) from error
    return wheel


def wheel_languages(wheel: str | os.PathLike) -> list[str]:
    """Lists the codes of a wheel's languages in alphabetical order, without English."""
    with zipfile.ZipFile(wheel) as archive:
        matches = (_MEMBER.fullmatch(name) for name in archive.namelist())
        return sorted({match[2] for match in matches if match} - {"en"})


def wheel_pairs(wheel: str | os.PathLike, language: str) -> dict[str, list[tuple[str, str]]]:
    """Reads the pairs of English and another language from a wheel, cleans and splits them.

    Returns:
        Distinct (English, other) pairs by split. Each English sentence, ignoring case, is in one
        split only. Validation and test have only its most frequent translation.
    """
    counts: dict[str, collections.Counter] = {}
    for texts in _components(wheel, language, beside_english=True):
        for pair in texts:
            if _is_translation(*pair):
                counts.setdefault(pair[0].casefold(), collections.Counter())[pair] += 1
    splits: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for key, group in counts.items():
        split = _split_of(key)
        splits[split].extend(group if split == "train" else [group.most_common(1)[0][0]])
    return splits


def wheel_documents(wheel: str | os.PathLike, language: str) -> dict[str, list[str]]:
    """Reads the texts of a wheel in one language, which may be "en", as documents.

    A document has the texts of one component (a part of the program), one per line, in the order
    of the component's file. A component whose texts are in several splits has a document in each.

    Returns:
        Documents by split. A text is in the split of its English text, as in `wheel_pairs`. Texts
        that were not translated are left out in languages other than English.
    """
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    for texts in _components(wheel, language):
        lines: dict[str, list[str]] = {split: [] for split in SPLITS}
        for english, text in texts:
            if _has_words(text) if language == "en" else _is_translation(english, text):
                lines[_split_of(english.casefold())].append(text)
        for split, found in lines.items():
            if found:
                splits[split].append("\n".join(found))
    return splits


def _components(
    wheel: str | os.PathLike, language: str, beside_english: bool = False
) -> Iterator[list[tuple[str, str]]]:
    """Yields each component's (English, other) texts, in the order of the other language's file."""
    found, wanted = False, None if beside_english and language == "en" else language
    with zipfile.ZipFile(wheel) as archive:
        members = set(archive.namelist())
        for name in sorted(members):
            match = _MEMBER.fullmatch(name)
            english_name = f"{name.rpartition('/')[0]}/en.json"
            if not match or match[2] != wanted or english_name not in members:
                continue
            found = True
            english = dict(_flatten(json.loads(archive.read(english_name))))
            yield [
                (_one_line(english.get(key, "")), _one_line(text))
                for key, text in _flatten(json.loads(archive.read(name)))
            ]
    if not found:
        raise UserError(
            f"homeassistant has no language {language!r} besides English: "
            f"give one of {', '.join(wheel_languages(wheel))}"
        )


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise UserError(f"homeassistant has no split {split!r}: give one of {', '.join(SPLITS)}")


def _split_of(key: str) -> str:
    """Chooses a split, 2% test and 2% validation, by a hash of the English text.

    The split is thus the same for all languages.
    """
    bucket = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    return "test" if bucket < 2 else "validation" if bucket < 4 else "train"


def _is_translation(english: str, other: str) -> bool:
    """Whether two texts differ and both have words.

    903 of 25,579 German pairs have equal sides: product names, units, "RSSI".
    """
    return english != other and _has_words(english) and _has_words(other)


def _has_words(text: str) -> bool:
    return any(map(str.isalpha, _UNTRANSLATED.sub("", text)))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _flatten(node, path: tuple = ()) -> Iterator[tuple[tuple, str]]:
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, dict | list):
        children = node.items() if isinstance(node, dict) else enumerate(node)
        for key, child in children:
            yield from _flatten(child, (*path, key))


def _pip_download(aside: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Downloads the wheel with pip, which uses the machine's package index, mirror and proxy."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.14", "--progress-bar", "off", "--retries", "2"]
    command += ["--timeout", "15", "--disable-pip-version-check", "--dest", str(aside)]
    command += [f"homeassistant=={HOMEASSISTANT_VERSION}"]
    log, start = aside / "pip.log", time.monotonic()
    with (
        open(log, "wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE)
                    break
                print(
                    f"downloading the corpus homeassistant {HOMEASSISTANT_VERSION} "
                    f"({_MEGABYTES} MB): {time.monotonic() - start:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
        finally:
            process.kill()
    fetched = aside / _WHEEL
    if process.returncode or not fetched.is_file():
        lines = [s for s in log.read_text(errors="replace").splitlines() if s.strip()]
        errors = [s for s in lines if s.startswith("ERROR")] or lines[-1:] or ["no output"]
        raise UserError(
            f"pip could not download the default corpus ({errors[-1][:200]}): connect to a package "
            f"index and run again, put {_WHEEL} into {folder}, or give another source such as "
            "text:SOURCE_FILE,TARGET_FILE"
        )
    return fetched
