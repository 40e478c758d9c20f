"""Folders in Hugging Face format work in CTranslate2, lm-evaluation-harness and MTEB, offline.

`make test-peers` installs these programs. Tests of a missing program are skipped.
"""

import json

import numpy as np
import pytest

import macaron_tf
from macaron_tf.decoding import GenerationConfig
from macaron_tf.model import Model
from macaron_tf.models import EncoderConfig, SiameseEncoder
from macaron_tf.text import WordPieceVocabulary
from tests.harness import refuses
from tests.toys.decoders import language_model, random, sequence_model
from tests.toys.hugging_face import written

TEXTS = ["the cat sat", "hello world"]
TASK = """
task: small
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{text}}}}"
doc_to_target: " {{{{end}}}}"
metric_list:
  - metric: acc
"""


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """Sets the Hugging Face Hub to offline mode, and puts caches into the folder of the test."""
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(tmp_path / "datasets"),
        "MTEB_CACHE": str(tmp_path / "mteb"),
    }.items():
        monkeypatch.setenv(name, value)


def converted(place) -> str:
    """Converts a folder to CTranslate2's format; returns the new folder."""
    converters = pytest.importorskip("ctranslate2.converters")
    out = place.with_name("converted")
    converters.TransformersConverter(str(place)).convert(str(out))
    return str(out)


@pytest.mark.parametrize("kind", ["language model", "denoiser", "t5"])
def test_ctranslate2_answers_as_transformers_does(kind, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    transformers = pytest.importorskip("transformers")
    is_causal = kind == "language model"
    written(language_model() if is_causal else sequence_model(kind), tmp_path / "out")
    ending = "CausalLM" if is_causal else "Seq2SeqLM"
    theirs = getattr(transformers, f"AutoModelFor{ending}").from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    program = ctranslate2.Generator if is_causal else ctranslate2.Translator
    program = program(converted(tmp_path / "out"))
    barred = tokenizer.convert_ids_to_tokens(theirs.generation_config.suppress_tokens)
    barred = [[piece] for piece in barred]
    for text in TEXTS:
        given = tokenizer(text, return_tensors="pt")
        answer = theirs.generate(**given, max_new_tokens=10, do_sample=False)[0].tolist()
        prompt = tokenizer.convert_ids_to_tokens(given["input_ids"][0])
        if is_causal:
            greedy = {"sampling_topk": 1, "include_prompt_in_result": False, "max_length": 10}
            [found] = program.generate_batch([prompt], suppress_sequences=barred, **greedy)
            assert found.sequences_ids[0] == answer[len(prompt) :]
        else:
            greedy = {"beam_size": 1, "max_decoding_length": 10}
            [found] = program.translate_batch([prompt], suppress_sequences=barred, **greedy)
            ids = tokenizer.convert_tokens_to_ids(found.hypotheses[0])
            assert ids == [number for number in answer[1:] if number != tokenizer.eos_token_id]


@pytest.mark.parametrize("block", ["transformer", "macaron", "swish_rnn"])
def test_lm_evaluation_harness_runs_our_models(block, tmp_path):
    """The adapter's numbers are sums of log-softmax; for a GPT-2, also those of the model `hf`.

    The model's own scores are these numbers, too.
    """
    harness = pytest.importorskip("lm_eval")
    tasks = pytest.importorskip("lm_eval.tasks")
    from macaron_tf.cli.lm_eval import Macaron

    made = language_model(block=block)
    made.save_pretrained(tmp_path / "own")
    # The last context is longer than the window, and ends in a space, which the answer gets.
    pairs = [("the cat sat on the", "mat"), ("a", "dog ran"), ("hello " * 30 + "the ", "cat")]
    lines = [json.dumps({"text": text, "end": end}) for text, end in pairs]
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "small.yaml").write_text(TASK.format(file=tmp_path / "data.jsonl"))
    common = {
        "tasks": ["small"],
        "task_manager": tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
        "log_samples": True,
    }

    def responses(*model, **options):
        found = harness.simple_evaluate(*model, **options, **common)["samples"]["small"]
        return [sample["resps"][0][0] for sample in found]

    ours = responses("macaron", model_args=f"path={tmp_path / 'own'},trust_code=True")
    vocabulary, network = made.vocabulary, made.network

    def log_prob(row, first):
        logits = np.asarray(network({"token_ids": np.array([row[:-1]], np.int32)}), np.float64)[0]
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return sum(log_probs[place - 1, row[place]] for place in range(first, len(row)))

    for (text, end), (found, _) in zip(pairs, ours, strict=True):
        context, whole = vocabulary.encode_lines([text.rstrip(), f"{text} {end}"])
        answer = whole[len(context) :]
        kept = context[max(len(whole) + 1 - 65, 0) :]  # 64 positions and a label, with [CLS]
        expected = log_prob([vocabulary.special.begin, *kept, *answer], 1 + len(kept))
        assert found == pytest.approx(expected, abs=1e-3)
    if block == "transformer":
        written(made, tmp_path / "out")
        args = f"pretrained={tmp_path / 'out'},add_bos_token=True,dtype=float32,max_length=64"
        theirs = responses("hf", model_args=args, device="cpu", batch_size=1)
        # `hf` cuts [CLS] off a long context.
        np.testing.assert_allclose(np.array(ours)[:2], np.array(theirs)[:2], atol=1e-3)
        for model in (made, macaron_tf.load(f"hugging-face:{tmp_path / 'out'}")):
            wholes = model.score([f"{text} {end}" for text, end in pairs[:2]])
            parts = model.score([text for text, _ in pairs[:2]])
            scores = [a["log_probs"] - b["log_probs"] for a, b in zip(wholes, parts, strict=True)]
            np.testing.assert_allclose(scores, np.array(theirs)[:2, 0], atol=1e-3)

    model = Macaron(str(tmp_path / "own"), max_length=10)

    def asked(kind, *arguments):
        return harness.api.instance.Instance(kind, doc={}, arguments=arguments, idx=0)

    texts = ["a dog", "the cat sat on the mat, the world", ""]
    found = model.loglikelihood_rolling([asked("loglikelihood_rolling", text) for text in texts])
    for text, total in zip(texts, found, strict=True):
        [ids], start, expected = vocabulary.encode_lines([text]), vocabulary.special.begin, 0.0
        for first in range(0, len(ids), 9):  # windows of [CLS], the token before, and 9 to score
            last = min(first + 9, len(ids))
            # The last window takes more of the text before.
            context = ids[max(last - 10, 0) : first] if first else []
            before = context[-(10 - (last - first)) :] if first else []
            row = [start, *before, *ids[first:last]]
            expected += log_prob(row, 1 + len(before))
        assert total == pytest.approx(expected, abs=1e-3)
    whole = made.task.generator.complete(["a dog"], GenerationConfig(temperature=0, max_tokens=40))
    model = Macaron(str(tmp_path / "own"))
    text, stop = whole[0][0].text, whole[0][0].text[20:22]
    settings = [{"until": [], "max_gen_toks": 40}, {"until": [stop], "max_gen_toks": 40}]
    found = model.generate_until([asked("generate_until", "a dog ", one) for one in settings])
    length = min(40, 64 // 2)
    written_text = made.task.generator.detokenizer(whole[0][0].ids[:length])
    assert found == [written_text, written_text.split(stop)[0]] and text.startswith(found[1])


def test_an_encoder_decoder_is_refused_by_the_adapter(tmp_path):
    pytest.importorskip("lm_eval")
    from macaron_tf.cli.lm_eval import Macaron

    sequence_model("t5").save_pretrained(tmp_path)
    refuses("is not a causal language model", Macaron, str(tmp_path))


def test_mteb_measures_our_vectors(tmp_path):
    mteb = pytest.importorskip("mteb")
    abstract = pytest.importorskip("mteb.abstasks")
    described = pytest.importorskip("mteb.abstasks.task_metadata").TaskMetadata
    datasets = pytest.importorskip("datasets")
    sentences = pytest.importorskip("sentence_transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    vocabulary = WordPieceVocabulary(words)
    network = random(SiameseEncoder(EncoderConfig(vocabulary.size, 32, 64, 4, 2, max_length=16)))
    made = Model(network, vocabulary=vocabulary)
    written(made, tmp_path / "out")
    first, second = ["a b", "c d e", "f", "g h a"], ["a c", "h", "f f", "b b"]
    columns = {"sentence1": first, "sentence2": second, "score": [4.0, 0.5, 5.0, 2.0]}

    class Small(abstract.AbsTaskSTS):
        metadata = described(
            dataset={"path": "local", "revision": "1"},
            name="Small",
            description="Four pairs.",
            type="STS",
            eval_langs=["eng-Latn"],
            main_score="cosine_pearson",
        )

        def load_data(self, *arguments, **options):
            self.dataset = {"test": datasets.Dataset.from_dict(columns)}
            self.data_loaded = True

    model = sentences.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    found = mteb.evaluate(model, Small(), cache=None, show_progress_bar=False)
    [scores] = found.task_results[0].scores["test"]
    rows = [vocabulary.encode_lines(texts) for texts in (first, second)]

    def vector(ids):
        inputs = {"token_ids": np.array([[vocabulary.special.begin, *ids, vocabulary.special.end]])}
        value = np.asarray(network(inputs))[0]
        return value / np.linalg.norm(value)

    cosines = [vector(a) @ vector(b) for a, b in zip(*rows, strict=True)]
    expected = np.corrcoef(cosines, columns["score"])[0, 1]
    assert scores["cosine_pearson"] == pytest.approx(expected, abs=1e-4)
