"""TFDS builders for Multi30k, IWSLT14 and CoNLL-2003 (named entities), which TFDS lacks.

Importing this module registers the builders, so that `tfds.load` and `--download` find them.

The publishers provide no checksums. To record the checksums of a download that you trust, create an
empty file `checksums.tsv` beside this file, and call `download_and_prepare` with
`tfds.download.DownloadConfig(register_checksums=True)`.
"""

import io
import itertools
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import tensorflow_datasets as tfds
from etils import epath

from macaron_tf.errors import UserError
from macaron_tf.io.files import lines_of
from macaron_tf.io.progress import track

Pairs = list[tuple[str, str]]
SPLITS = ("train", "validation", "test")


class PublishedSet(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Base class for builders of datasets whose files are in one web folder.

    Attributes:
        FILES: file names. A name with the placeholder `{}` means one file for each language of the
            configuration.
    """

    VERSION = tfds.core.Version("1.0.0")
    URL: str
    FILES: tuple[str, ...]

    def _languages(self) -> tuple[str, ...]:
        return tuple(self.builder_config.name.split("-"))

    def _info(self) -> tfds.core.DatasetInfo:
        languages = self._languages()
        features = tfds.features.Translation(languages)
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=languages)

    def _fetch(self, dl_manager: tfds.download.DownloadManager) -> dict[str, epath.Path]:
        """Returns a dict mapping the name of each published file to its path."""
        languages = self._languages() if self.builder_config else ("",)
        names = {name.format(code) for name in self.FILES for code in languages}
        return dl_manager.download({name: f"{self.URL}/{name}" for name in names})

    def _generate_examples(self, examples: Iterable[dict]) -> Iterator[tuple[int, dict]]:
        yield from enumerate(examples)

    def _split(self, pairs: Pairs) -> Iterator[tuple[int, dict]]:
        languages = self._languages()
        return self._generate_examples(dict(zip(languages, pair, strict=True)) for pair in pairs)


class Multi30k(PublishedSet):
    """Multi30k (Elliott et al. 2016): Flickr30k's captions with human translations, untokenized."""

    URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    FILES = ("train.{}.gz", "val.{}.gz", "test_2016_flickr.{}.gz")
    BUILDER_CONFIGS = tuple(
        tfds.core.BuilderConfig(name=f"{code}-en", version=PublishedSet.VERSION)
        for code in ("de", "fr", "cs")
    )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict:
        files, splits = self._fetch(dl_manager), {}
        for split, name in zip(SPLITS, self.FILES, strict=True):
            sides = {n: list(lines_of(files[n])) for n in map(name.format, self._languages())}
            splits[split] = self._split(_aligned(sides))
        return splits


class Iwslt14(PublishedSet):
    """TED talks in German and English from IWSLT 2014 (Cettolo et al. 2014).

    The preparation follows fairseq's `prepare-iwslt14.sh`. The texts are lower-cased and
    tokenized by the Moses tokenizer, which escapes special characters. Training and validation
    pairs have 1 to 175 tokens on each side, and the longer side has at most 1.5 times as many
    tokens as the shorter side. Of these pairs, every 23rd is a validation pair. The test split
    consists of dev2010, dev2012 and tst2010 to tst2012. The dataset has 160,239 training pairs,
    7,283 validation pairs and 6,750 test pairs.
    """

    URL = "http://dl.fbaipublicfiles.com/fairseq/data/iwslt14"
    FILES = ("de-en.tgz",)
    BUILDER_CONFIGS = (tfds.core.BuilderConfig(name="de-en", version=PublishedSet.VERSION),)
    TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict:
        languages = self._languages()
        with tarfile.open(self._fetch(dl_manager)["de-en.tgz"]) as archive:

            def read(name: str, lines_in: Callable[[list[str]], list[str]]) -> Pairs:
                names = map(name.format, languages)
                return _aligned({n: lines_in(_read_member(archive, n)) for n in names})

            train, test = read("train.tags.de-en.{}", _spoken_lines), []
            for part in self.TESTS:
                test += read(f"IWSLT14.{part}.de-en.{{}}.xml", _segments)
        clean = [pair for pair in _tokenized(train, languages) if _has_fitting_lengths(*pair)]
        clean = [(source.lower(), target.lower()) for source, target in clean]
        test = [(source.lower(), target.lower()) for source, target in _tokenized(test, languages)]
        return {
            "train": self._split([p for n, p in enumerate(clean, start=1) if n % 23]),
            "validation": self._split(clean[22::23]),
            "test": self._split(test),
        }


class Conll2003Ner(PublishedSet):
    """CoNLL-2003 (Tjong Kim Sang and De Meulder 2003): named entities in English news texts."""

    URL = "https://data.deepai.org"
    FILES = ("conll2003.zip",)
    SPLITS: ClassVar = {"train": "train.txt", "dev": "valid.txt", "test": "test.txt"}
    TAGS = ("O", *(f"{prefix}-{name}" for name in ("PER", "ORG", "LOC", "MISC") for prefix in "BI"))

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "tokens": tfds.features.Sequence(tfds.features.Text()),
            "ner": tfds.features.Sequence(tfds.features.ClassLabel(names=self.TAGS)),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict:
        with zipfile.ZipFile(self._fetch(dl_manager)["conll2003.zip"]) as archive:
            texts = {s: archive.read(n).decode().split("\n") for s, n in self.SPLITS.items()}
        return {split: self._generate_examples(_sentences(text)) for split, text in texts.items()}


BUILDERS = {builder.name: builder for builder in (Multi30k, Iwslt14, Conll2003Ner)}


def _aligned(sides: dict[str, list[str]]) -> Pairs:
    """Pairs the lines of two files."""
    lengths = {name: len(lines) for name, lines in sides.items()}
    if len(set(lengths.values())) > 1 or not all(lengths.values()):
        raise UserError(f"the files have different numbers of lines or none: {lengths}")
    return list(zip(*sides.values(), strict=True))


def _read_member(archive: tarfile.TarFile, name: str) -> list[str]:
    file = archive.extractfile(f"de-en/{name}")
    return list(io.TextIOWrapper(file, "utf-8", newline="\n"))


def _spoken_lines(lines: list[str]) -> list[str]:
    """Extracts the talks, titles and descriptions from the lines of a training file."""
    spoken = (line for line in lines if not re.search("<(url|talkid|keywords)>", line))
    return [re.sub("</?(title|description)>", "", line) for line in spoken]


def _segments(lines: list[str]) -> list[str]:
    """Extracts the sentences from the lines of a test file."""
    segments = (line for line in lines if "<seg id" in line)
    texts = (re.sub(r'<seg id="\d*">\s*|\s*</seg>\s*', "", segment) for segment in segments)
    return [text.replace("\u2019", "'") for text in texts]


def _tokenized(pairs: Pairs, languages: Iterable[str]) -> Iterator[tuple[str, str]]:
    import sacremoses  # only this dataset needs the import, which takes half a second

    moses = [sacremoses.MosesTokenizer(code) for code in languages]
    for pair in track(((1, pair) for pair in pairs), len(pairs), "tokenizing", "pairs"):
        tools = zip(moses, pair, strict=True)
        yield tuple(tool.tokenize(line, return_str=True) for tool, line in tools)


def _has_fitting_lengths(source: str, target: str) -> bool:
    shorter, longer = sorted(len(side.split()) for side in (source, target))
    return shorter >= 1 and longer <= 175 and longer <= 1.5 * shorter


def _sentences(lines: Iterable[str]) -> Iterator[dict[str, list[str]]]:
    """Yields the words and entity tags of each sentence from lines in CoNLL's column format."""
    # Only spaces and tabs separate columns, because a word may contain a no-break space.
    rows = ([column for column in re.split("[\t \r\n]", line) if column] for line in lines)
    for filled, group in itertools.groupby(rows, bool):
        words = [(row[0], row[-1]) for row in group if filled and row[0] != "-DOCSTART-"]
        if words:
            yield {"tokens": [word for word, _ in words], "ner": [tag for _, tag in words]}
