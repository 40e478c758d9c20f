"""Tests of batches of examples, sentences and arrays: lengths, epochs and exact restarts."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from macaron_tf.data.batches import ArrayBatches, ExampleBatches
from macaron_tf.data.sampler import MixingConfig, bucket_shapes, choose_lengths, plan_batches
from macaron_tf.data.tasks.encoding import encode_examples, encode_pairs, encode_sets
from macaron_tf.data.tasks.examples import Examples
from macaron_tf.data.translation import BatchingConfig, TranslationData
from macaron_tf.objectives import ClassificationObjective
from macaron_tf.text.words import CharacterWords
from tests.harness import refuses

LENGTHS = np.minimum(2 + np.random.default_rng(0).poisson(9, 5000) * 2, 60)
COUNT, LENGTH, ROWS = 203, 24, 8  # 203 = 25 x 8 + 3


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_lengths_are_optimal(count, multiple):
    lengths = np.random.default_rng(1).integers(2, 14, 40)
    chosen = choose_lengths(lengths, count, multiple)

    def cost(boundaries):
        return sum(min(b for b in boundaries if b >= length) for length in lengths)

    longest = -(-int(lengths.max()) // multiple) * multiple
    shorter = range(multiple, longest, multiple)
    best = min(cost((*some, longest)) for some in itertools.combinations(shorter, count - 1))
    assert cost(chosen) == best
    assert chosen[-1] == longest and len(chosen) <= count


def test_buckets_fill_the_budget():
    assert choose_lengths(np.array([3, 3, 8]), 8, 4) == [4, 8]
    assert choose_lengths(np.array([5]), 8, 2) == [6]
    assert bucket_shapes([12, 30, 1000, 4096], 4096) == ((336, 12), (136, 30), (4, 1000), (1, 4096))
    refuses("a batch of 50 tokens cannot hold a sequence of 51", bucket_shapes, [10, 51], 50)
    shapes = bucket_shapes(choose_lengths(LENGTHS, 8, 2), 512)
    plan = plan_batches(shapes, LENGTHS, np.random.default_rng(0))
    assert LENGTHS.sum() / sum(len(batch.rows) * batch.length for batch in plan) > 0.9


@pytest.mark.parametrize("rng", [None, np.random.default_rng(0)])
@pytest.mark.parametrize("rows", [1, 7, 300, 5000])
def test_each_row_once_in_static_shapes(rng, rows):
    lengths = LENGTHS[:rows]
    shapes = bucket_shapes(choose_lengths(LENGTHS, 6, 2), 512)
    plan = plan_batches(shapes, lengths, rng)
    ordered = plan_batches(shapes, lengths, None)
    assert len(plan) == len(ordered)
    dealt = np.concatenate([batch.rows for batch in plan])
    assert np.array_equal(np.sort(dealt[dealt >= 0]), np.arange(rows))
    assert {(len(batch.rows), batch.length) for batch in plan} <= set(shapes)
    assert sum(bool((batch.rows < 0).any()) for batch in plan) <= 1
    for batch in plan:
        assert lengths[batch.rows[batch.rows >= 0]].max() <= batch.length
    if rng is None:
        assert (np.diff(lengths[dealt[dealt >= 0]]) >= 0).all()


@pytest.fixture(scope="module")
def examples():
    """Returns labelled pairs of texts with 1 to 20 words each."""
    rng = np.random.default_rng(0)

    def texts():
        return [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 21))) for _ in range(COUNT)]

    labels = rng.integers(0, 2, COUNT).astype(np.int32)
    return Examples((texts(), texts()), labels)


@pytest.fixture(scope="module")
def encode(vocabulary):
    return lambda examples, length=LENGTH: encode_examples(vocabulary, examples, length)


@pytest.fixture(scope="module")
def data(examples, encode):
    return ExampleBatches(encode(examples), ROWS)


@pytest.fixture(scope="module")
def sentences(examples, vocabulary):
    sets = dataclasses.replace(examples, labels=examples.labels.astype(np.float32))
    return ExampleBatches(encode_sets(vocabulary, sets, LENGTH), ROWS)


@pytest.fixture(scope="module")
def scores(examples, encode):
    labels = np.linspace(0, 5, COUNT, dtype=np.float32)
    return ExampleBatches(
        encode(dataclasses.replace(examples, texts=examples.texts[:1], labels=labels)), ROWS
    )


@pytest.fixture(scope="module")
def pairs(toy_pairs, toy_vocabulary):
    return TranslationData.from_pairs(toy_pairs, toy_vocabulary, batching=BatchingConfig(200, 5))


@pytest.fixture(scope="module")
def arrays():
    lengths = np.random.default_rng(0).permutation(COUNT)
    return ArrayBatches(COUNT, ROWS, lambda rows: {"x": rows}, {"x": ("int64", (None,))}, lengths)


@pytest.fixture(scope="module")
def mixed(toy_pairs, toy_vocabulary):
    """Returns batches of two mixed tasks, which have 10% and 90% of the sentence pairs."""

    def draws(numbers):
        return MixingConfig(limit=50).make_draw((numbers >= len(toy_pairs) // 10).astype(int))

    batching = BatchingConfig(200, 5)
    return TranslationData.from_pairs(toy_pairs, toy_vocabulary, batching=batching, make_draw=draws)


@pytest.fixture(params=["data", "sentences", "pairs", "mixed", "arrays"])
def batches(request):
    """Returns the batches of the fixture that the parameter names."""
    return request.getfixturevalue(request.param)


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("start", [0, 1, 24, 26, 95])
def test_start_step_equals_skipping(batches, start):
    whole = list(itertools.islice(batches.batches(5), start + 4))
    started = list(batches.dataset(5, start).take(4).as_numpy_iterator())
    assert all(equal(a, b) for a, b in zip(whole[start:], started, strict=True))


def test_rates_of_a_mixture_are_the_formulas():
    counts = np.array([1_000_000, 60_614, 7_250, 2_240])

    def rates(**settings):
        return MixingConfig(**settings).rates(counts)

    below = np.minimum(counts, 2**16)
    np.testing.assert_allclose(rates(limit=2**16), below / below.sum())
    np.testing.assert_allclose(rates(limit=2**21, temperature=2), counts**0.5 / sum(counts**0.5))
    np.testing.assert_allclose(rates(limit=1), 0.25)
    refuses("data.mixing.temperature=0.5 must be", MixingConfig, temperature=0.5)


def test_a_mixture_draws_its_tasks_at_their_rates(mixed):
    """Over 200 epochs, each task's share of the rows is its mixing rate.

    All examples of a task occur equally often.
    """
    size = len(mixed)
    first = (mixed.tokens.indices < 0.1 * (mixed.tokens.indices.max() + 1)).sum()
    rate = min(first, 50) / (min(first, 50) + min(size - first, 50))
    seen = np.zeros(size, int)
    for epoch in range(200):
        plan = mixed.plan(np.random.default_rng([3, epoch]))
        assert len(plan) == mixed.steps_per_epoch
        rows = np.concatenate([batch.rows for batch in plan])
        seen += np.bincount(rows[rows >= 0], minlength=size)
        assert all(mixed.row_lengths[b.rows[b.rows >= 0]].max(initial=0) <= b.length for b in plan)
    assert rate > 2 * first / size  # differs from the share of pairs
    assert scipy.stats.binomtest(int(seen[:first].sum()), int(seen.sum()), rate).pvalue > 1e-3
    for part in (seen[:first], seen[first:]):
        assert part.std() < 1.5 * part.mean() ** 0.5


def test_seed_and_epoch_decide_the_order(batches):
    first = next(batches.batches(1))
    assert equal(first, next(batches.batches(1)))
    assert not equal(first, next(batches.batches(2)))
    assert not equal(first, next(batches.batches(1, start_step=batches.steps_per_epoch)))


def test_the_dataset_knows_its_size_and_specification(batches):
    steps = batches.steps_per_epoch
    dataset = batches.dataset(repeat=False)
    assert len(dataset) == steps == len(list(dataset))
    assert len(batches.dataset(start_step=steps + 1, repeat=False)) == steps - 1
    assert batches.dataset().cardinality() == tf.data.INFINITE_CARDINALITY
    assert batches.dataset().options().autotune.enabled is False
    evaluation = batches.evaluation_dataset()
    assert len(evaluation) == len(list(evaluation))
    for batch in dataset:
        for name, spec in dataset.element_spec.items():
            assert spec.is_compatible_with(batch[name]) and spec.dtype == batch[name].dtype


def test_arrays_leave_out_the_rest_of_an_epoch(arrays):
    def numbers(batches, start=0, count=25):
        return [b["x"] for b in itertools.islice(batches.batches(1, start), count)]

    assert arrays.steps_per_epoch == 25 and len(set(np.concatenate(numbers(arrays)))) == 200
    shapes = {"x": ("int64", (None,))}
    free = ArrayBatches(10, 3, arrays._gather, shapes)
    assert free.steps_per_epoch == 3 and len(set(np.concatenate(numbers(free, 0, 3)))) == 9
    sizes = [len(batch["x"]) for batch in free.evaluation_dataset()]
    assert sizes == [3, 3, 3, 1]
    ordered = ArrayBatches(10, 3, arrays._gather, shapes, shuffle=False)
    assert [rows.tolist() for rows in numbers(ordered, 3, 2)] == [[9], [0, 1, 2]]
    # The rows of 16 batches are sorted by length together.
    lengths = np.random.default_rng(0).permutation(64)
    alike = ArrayBatches(64, 4, arrays._gather, shapes, lengths)
    assert max(np.ptp(lengths[rows]) for rows in numbers(alike, 0, 16)) == 3


def trimmed(value):
    """Returns an array as nested tuples without trailing zeros, or a scalar as a float."""
    if np.ndim(value) == 0:
        return float(value)
    if np.ndim(value[0]):
        return tuple(map(trimmed, value))
    return tuple(np.trim_zeros(np.asarray(value), "b").tolist())


@pytest.fixture(scope="module")
def expected(examples, vocabulary, toy_pairs, toy_vocabulary):
    """Returns a dict mapping the name of a batch fixture to the arrays of all examples in order."""

    def encoded(first, second=None):
        second = None if second is None else tf.constant(second)
        rows = encode_pairs(vocabulary, tf.constant(first), second, LENGTH)
        return {name: ids.numpy() for name, ids in rows.items()}

    weight = np.ones(COUNT)
    labels = {"label": examples.labels, "weight": weight}
    sentences = [encoded(texts)["token_ids"] for texts in (examples.first, examples.second)]
    ids = [
        [[*row, toy_vocabulary.special.end] for row in toy_vocabulary.encode_lines(side)]
        for side in zip(*toy_pairs, strict=True)
    ]
    return {
        "data": {**encoded(examples.first, examples.second), **labels},
        "scores": {
            **encoded(examples.first),
            "label": np.linspace(0, 5, COUNT, dtype=np.float32),
            "weight": weight,
        },
        "sentences": {"token_ids": list(zip(*sentences, strict=True)), **labels},
        "pairs": dict(zip(("source", "target"), ids, strict=True)),
    }


@pytest.mark.parametrize("kind", ["data", "scores", "sentences", "pairs"])
def test_each_example_once_and_the_way_back(kind, expected, request):
    batches, expected = request.getfixturevalue(kind), expected[kind]
    wanted = [tuple(map(trimmed, arrays)) for arrays in zip(*expected.values(), strict=True)]
    steps = batches.steps_per_epoch
    assert len(batches) == len(wanted)

    def seen(made, *names):
        """Returns one tuple of trimmed arrays per row; the arrays in `names` come first."""
        assert all(set(batch) == {*expected, *names} for batch in made)
        rows = [zip(*(batch[n] for n in (*names, *expected)), strict=True) for batch in made]
        return [tuple(map(trimmed, arrays)) for arrays in itertools.chain(*rows)]

    def is_padding(arrays):
        return all(part in (0, (), ((), ())) for part in arrays)

    evaluated = seen(list(batches.evaluation_dataset().as_numpy_iterator()), "index")
    assert all(is_padding(arrays) == (index < 0) for index, *arrays in evaluated)
    found = {int(index): tuple(arrays) for index, *arrays in evaluated}
    assert [found[index] for index in range(len(wanted))] == wanted
    order = [batches.row_lengths[int(index)] for index, *_ in evaluated if index >= 0]
    assert order == sorted(order)
    for epoch in range(2):
        made = seen(list(itertools.islice(batches.batches(3, epoch * steps), steps)))
        assert sorted(arrays for arrays in made if not is_padding(arrays)) == sorted(wanted)


def test_few_static_shapes(data, sentences, pairs, examples, encode):
    assert 1 < len(data.shapes) <= 4
    shapes = {batch["token_ids"].shape for batch in itertools.islice(data.batches(), 26)}
    assert shapes <= set(data.shapes)
    assert all(size == ROWS and length % 8 == 0 for size, length in data.shapes)
    spec = data.dataset().element_spec
    shapes = {name: tuple(entry.shape) for name, entry in spec.items()}
    ids, numbers = ("token_ids", "segment_ids"), ("label", "weight")
    assert shapes == dict.fromkeys(ids, (ROWS, None)) | dict.fromkeys(numbers, (ROWS,))
    assert data.summary().startswith("203 examples, 26 steps per epoch, ")
    other = ExampleBatches(data.encoded, 32)
    assert other.encoded is data.encoded and other.steps_per_epoch == 7
    assert len(sentences.shapes) <= 4
    assert all(size == ROWS and length <= LENGTH for size, length in sentences.shapes)
    assert sentences.dataset().element_spec["token_ids"].shape.as_list() == [ROWS, 2, None]
    shapes = {batch["source"].shape for batch in pairs.dataset(repeat=False)}
    assert shapes <= set(pairs.shapes) and 1 < len(pairs.shapes) <= 5
    most = ExampleBatches(data.encoded, 10**9)  # hardly more than an epoch
    assert {size for size, _ in most.shapes} == {256} and most.steps_per_epoch == 1
    odd = ExampleBatches(encode(examples, 21), ROWS)  # no length is above the greatest allowed one
    assert odd.lengths[-1] == 21
    assert max(batch["token_ids"].shape[1] for batch in odd.evaluation_dataset()) == 21
    one = ExampleBatches(sentences.encoded, ROWS, shapes=1)
    assert one.dataset().element_spec["token_ids"].shape == (ROWS, 2, sentences.lengths[-1])


def test_without_labels(examples, encode, vocabulary):
    data = ExampleBatches(encode(dataclasses.replace(examples, labels=None)), ROWS)
    batch = next(data.evaluation_dataset().as_numpy_iterator())
    assert set(batch) == {"token_ids", "segment_ids", "weight", "index"}
    sets = Examples((["a a", "d"], ["b", "e e"], ["c", "f"]), None)
    data = ExampleBatches(encode_sets(vocabulary, sets, LENGTH), 2)
    batch = next(data.batches())
    assert set(batch) == {"token_ids", "weight"} and batch["token_ids"].shape == (2, 3, 8)
    assert set(data.dataset().element_spec) == {"token_ids", "weight"}


def test_fingerprint(data, examples, encode):
    def fingerprint(**changes):
        return ExampleBatches(encode(dataclasses.replace(examples, **changes)), 16).fingerprint()

    assert fingerprint() == data.fingerprint()
    assert fingerprint(labels=1 - examples.labels) != data.fingerprint()
    assert fingerprint(texts=examples.texts[::-1]) != data.fingerprint()


def test_words_are_counted_and_told_apart():
    def batches(*texts):
        words = CharacterWords(8)
        encoded = encode_examples(words, Examples((list(texts),), np.arange(2, dtype=np.int32)), 9)
        return ExampleBatches(dataclasses.replace(encoded, characters=words.characters), 3)

    data, other = batches("a good film", "a bad film"), batches("the nice book", "the dull book")
    np.testing.assert_array_equal(data.encoded.rows.ids, other.encoded.rows.ids)
    assert data.fingerprint() != other.fingerprint()
    batch = next(data.batches())
    assert batch["token_ids"].shape == (3, 8, 8)
    logits = np.zeros((3, 2), "float32")
    sums = ClassificationObjective(2)(lambda inputs, training: logits, batch, training=True)
    assert sums["input_tokens"] == 2 * 5  # three words and two special tokens each
