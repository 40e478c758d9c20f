"""GPT, GPT-2, Llama and XLNet, read from directories, agree with Hugging Face's PyTorch models.

XLNet is tested with the content stream alone, with content and query streams, with permutation
masks, and with memory.
"""

import itertools
import json

import numpy as np
import pytest

import macaron_tf
from macaron_tf.decoding import GenerationConfig
from macaron_tf.hub import read_hugging_face
from macaron_tf.hub.arrays import Arrays, Raw, assign_weights, read_state, transformer_layer
from macaron_tf.hub.tokenizers.reading import read_language_vocabulary
from macaron_tf.layers.alibi import AlibiAttention
from macaron_tf.layers.mixer import Context
from macaron_tf.models import Encoder, EncoderConfig, LanguageModel
from macaron_tf.special import Special
from tests.harness import built, numpy_of, refuses
from tests.toys import peer_language_models as peers
from tests.toys.decoders import GPT
from tests.toys.hugging_face import check_equal, opened, save_random, two_stream_batch

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

L, B, PADDING = 9, 2, 5  # for XLNet
WITH_TOKENIZERS = ("gpt of relu", "gpt2", "gpt2 of another width", "llama of one table")
GPTS = [family for family in peers.FAMILIES if family != "xlnet"]


@pytest.mark.parametrize("family", GPTS)
def test_logits_agree(family, tmp_path):
    theirs = peers.make(family, tmp_path)
    read = read_hugging_face(tmp_path)
    assert read.card.unread == ()
    rng = np.random.default_rng(0)
    size = theirs.config.vocab_size
    ours = rng.integers(size, size=(4, 13)).astype("int32")
    with torch.no_grad():
        expected = theirs(torch.tensor(ours)).logits.numpy()
    logits = numpy_of(read.network({"token_ids": ours}))
    check_equal(logits[..., :size], expected)
    assert (logits[..., size:] < -9_000).all()  # ids that they lack have no probability


# Queries, keys and values have no biases.
UNBIASED = {
    "tokens/table": Raw("wte.weight"),
    "stack/final_norm": "ln_f",
    "query_key_value/bias": np.zeros(3 * 32, "float32"),
}


def layer_names(projection: str, feed_forward: list[str], last_norm: str) -> dict:
    """Returns the names of a layer whose first norm is "ln_1"; queries are `projection` of "q"."""
    attention = [projection.format(name) for name in ("q", "k", "v", "out")]
    return transformer_layer("h.{}.", attention, "ln_1", feed_forward, last_norm)


def test_parallel_branches_and_a_turned_part_of_heads_are_gpt_js(tmp_path):
    """A block with parallel branches and partial rotary embeddings agrees with GPT-J.

    GPT-J rotates neighbouring channels 2 i and 2 i + 1, so the test reorders the channels.
    """
    sizes = {"vocab_size": 37, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": peers.LENGTH}
    theirs = transformers.GPTJConfig(**sizes, rotary_dim=4)
    theirs = save_random(transformers.GPTJModel, theirs, tmp_path)
    options = {"scheme": "tokens & channels", "positions": "rotary", "rotary_dim": 4}
    config = EncoderConfig(37, 32, 128, 4, 2, **{**GPT, "norm": "pre", **options})
    ours, state = built(Encoder, config), read_state(tmp_path)
    order = (8 * np.arange(4)[:, None] + [0, 2, 1, 3, 4, 5, 6, 7]).ravel()
    for name in state:
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            state[name] = state[name][order]
    arrays, biases = Arrays(state), {"output/bias": np.zeros(32, "float32")}
    names = layer_names("attn.{}_proj", ["mlp.fc_in", "mlp.fc_out"], "ln_1")
    assign_weights(ours, arrays, {**UNBIASED, **biases, **names})
    assert not set(arrays.arrays) - arrays.names_read
    rows = np.random.default_rng(0).integers(4, 37, (2, 9))
    with torch.no_grad():
        expected = theirs(torch.tensor(rows)).last_hidden_state
    check_equal(ours({"token_ids": rows}), expected)


@pytest.mark.parametrize("heads", [4, 6])
def test_linear_biases_are_blooms(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    layer = AlibiAttention(heads, head_dim=2)
    positions = np.arange(7, dtype="int32")
    nothing = np.zeros((1, heads, 7, 2), "float32")
    found = numpy_of(layer.scores(nothing, nothing, Context(positions=positions), positions))[0]
    theirs = build_alibi_tensor(torch.ones(1, 7), heads, torch.float32).numpy()  # `(H, 1, S)`
    for t in range(7):  # softmax ignores a constant added to all scores
        seen = found[:, t, : t + 1] - found[:, t, :1]
        np.testing.assert_allclose(seen, theirs[:, 0, : t + 1], rtol=1e-6)
    np.testing.assert_array_equal(found, np.swapaxes(found, 1, 2))


def test_banded_layers_are_gpt_neo_s(tmp_path):
    """GPT-Neo alternates full and local attention layers, as GPT-3. Scores are not scaled."""
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_layers": 4, "num_heads": 4}
    bands = {"attention_types": [[["global", "local"], 2]], "window_size": 3}
    theirs = transformers.GPTNeoConfig(**sizes, **bands, max_position_embeddings=peers.LENGTH)
    theirs = save_random(transformers.GPTNeoForCausalLM, theirs, tmp_path)
    options = {"max_length": peers.LENGTH, "scaled": False, "attention_windows": (0, 3)}
    config = EncoderConfig(40, 32, 128, 4, 4, **{**GPT, "norm": "pre", **options})
    ours = built(LanguageModel, config)
    arrays = Arrays(read_state(tmp_path), "transformer.")
    names = layer_names("attn.attention.{}_proj", ["mlp.c_fc", "mlp.c_proj"], "ln_2")
    assign_weights(ours, arrays, {**UNBIASED, "embeddings/positions": "wpe", **names})
    assert not set(arrays.arrays) - arrays.names_read - {"lm_head.weight"}
    ids = np.random.default_rng(0).integers(1, 40, (2, peers.LENGTH)).astype("int32")
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    check_equal(ours({"token_ids": ids}), expected)
    context, cache = ours.init_decode(2, 1)
    cache = ours.prefill(ids[:, :6], 0, context, cache)
    for index in range(6, peers.LENGTH):
        logits, cache = ours.decode_step(ids[:, index : index + 1], index, context, cache)
        check_equal(logits[:, 0], expected[:, index])


# Name of Hugging Face's tokenizer, and texts.
TOKENIZERS = {
    "gpt2": ("GPT2Tokenizer", ("hello world", "Hell he's  well\n\nünder", "")),
    "gpt": (
        "OpenAIGPTTokenizer",
        ("hello world.", "HELL, he's  wéll\n\nünder", "", "the 3 wheels", "东京 the", "`the`"),
    ),
}


@pytest.mark.parametrize("family", TOKENIZERS)
def test_a_tokenizer_cuts_as_theirs(family, tmp_path):
    options = {"vocab_size": peers.write_gpt_vocabulary(tmp_path)} if family == "gpt" else {}
    peers.make(family, tmp_path, **options)
    read = read_hugging_face(tmp_path)
    assert not read.card.starts
    name, texts = TOKENIZERS[family]
    tokenizer = getattr(transformers, name).from_pretrained(tmp_path)
    for text in texts:
        theirs = tokenizer(text)["input_ids"]
        [ours] = read.vocabulary.encode_lines([text])
        assert ours == theirs
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        assert read.vocabulary.decode_lines([ours]) == [tokenizer.decode(theirs, **options)]
    # Recent versions save a tokenizer as one file, which is read like the older two files.
    tokenizer.save_pretrained(tmp_path / "fast")
    for file in ("vocab.json", "merges.txt"):
        (tmp_path / "fast" / file).unlink(missing_ok=True)
    for file in ("config.json", "model.safetensors"):
        (tmp_path / "fast" / file).write_bytes((tmp_path / file).read_bytes())
    again = read_hugging_face(tmp_path / "fast")
    assert again.vocabulary.hash == read.vocabulary.hash


def test_the_published_vocabulary_of_gpt2_is_read(shared_data, tmp_path):
    folder = shared_data / "vocabularies/gpt2"
    for ours, theirs in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        (tmp_path / ours).write_bytes((folder / theirs).read_bytes())
    vocabulary, _ = read_language_vocabulary(tmp_path)
    assert vocabulary.pieces == 50_257 and vocabulary.size == 50_264
    special = Special(50_257, None, 50_256, 50_256, 50_258, rows=50_257)
    assert vocabulary.special == special
    found = vocabulary.encode_lines(["Hello world, it's 2019!"])
    assert found == [[15496, 995, 11, 340, 338, 13130, 0]]


@pytest.mark.parametrize("family", WITH_TOKENIZERS)
def test_a_classifier_answers_texts_as_theirs(family, tmp_path):
    """A GPT classifier predicts what Hugging Face predicts for rows without special ids."""
    size = (
        {"vocab_size": peers.write_gpt_vocabulary(tmp_path)} if family.startswith("gpt of") else {}
    )
    head = {"num_labels": 3, "pad_token_id": 0}
    theirs = peers.make(family, tmp_path, "ForSequenceClassification", **size, **head)
    model = macaron_tf.load(f"hugging-face:{tmp_path}")
    texts = ["hello well", "we", "hell he well hello"]
    ids = [[row] for row in model.vocabulary.encode_lines(texts)]
    with torch.no_grad():
        expected = [theirs(torch.tensor(row)).logits.softmax(-1)[0] for row in ids]
    found = model.predict(texts)
    assert found[0]["classes"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    check_equal([answer["probabilities"] for answer in found], np.stack(expected))
    assert all(len({*answer["probabilities"]}) == 3 for answer in found)


def test_a_llama_classifier_has_no_output_matrix(tmp_path):
    """With untied embeddings, the classifier's file lacks lm_head.weight."""
    theirs = peers.make(
        "llama", tmp_path, "ForSequenceClassification", num_labels=3, pad_token_id=0
    )
    read = read_hugging_face(tmp_path)
    assert read.card.unread == () and read.card.missing_head == ""
    ours = np.random.default_rng(0).integers(6, 36, (4, 13)).astype("int32")
    with torch.no_grad():
        expected = theirs(torch.tensor(ours)).logits
    check_equal(numpy_of(read.network({"token_ids": ours})), expected)


def test_heads_that_ours_has_not_are_named(tmp_path):
    peers.make("gpt2", tmp_path, "DoubleHeadsModel")
    head, read = "multiple_choice_head.summary", read_hugging_face(tmp_path)
    assert read.card.unread == (f"{head}.bias", f"{head}.weight")
    assert read.card.missing_head == ""  # the language head is read


@pytest.mark.parametrize(
    ("family", "head"),
    [
        *itertools.product(("gpt2", "llama"), ("ForTokenClassification", "ForQuestionAnswering")),
        ("llama of one table", "ForTokenClassification"),
        ("llama", "Model"),
    ],
)
def test_a_model_with_another_head_predicts_no_tokens(family, head, tmp_path):
    theirs = peers.make(family, tmp_path, head)
    read = macaron_tf.load(f"hugging-face:{tmp_path}")
    assert (head == "Model") == (read.card.unread == ())
    lacking = r"lm_head\.weight" if head == "Model" else f"the head of {type(theirs).__name__}"
    refuses(f"{lacking}.* was not read: fine-tune it", read.predict, "hello")
    ours = np.random.default_rng(0).integers(6, 36, (2, 13)).astype("int32")
    body = getattr(theirs, theirs.base_model_prefix, theirs)
    with torch.no_grad():
        expected = body(torch.tensor(ours)).last_hidden_state
    check_equal(numpy_of(read.encoder({"token_ids": ours})), expected)


@pytest.mark.parametrize(("options", "padded"), [({}, 0), ({"clamp_len": 4}, 0), ({}, 3)])
def test_the_content_stream_is_the_encoder_s_and_nobody_sees_padding(tmp_path, options, padded):
    theirs = peers.make("xlnet", tmp_path, "Model", **options)
    read, batch = read_hugging_face(tmp_path), two_stream_batch(peers.V)
    batch["token_ids"][1, L - padded :] = read.special.pad
    real = batch["token_ids"] != read.special.pad
    mask = torch.tensor(real.astype("float32"))
    expected = peers.hidden_states(theirs, batch, attention_mask=mask).last_hidden_state.numpy()
    inputs = {name: batch[name] for name in ("token_ids", "segment_ids")}
    found = numpy_of(read.network.encoder(inputs))
    np.testing.assert_allclose(found[real], expected[real], atol=1e-4)


def task_rows(padded=2):
    """Returns two rows `context [SEP] question [SEP] [CLS]`; the second row is shorter."""
    tokens, segments = two_stream_batch(peers.V)["token_ids"], np.zeros((B, L), "int32")
    for row, (context, length) in enumerate(((5, L), (3, L - padded))):
        segments[row, context : length - 1] = 1
        segments[row, length - 1] = 2
        tokens[row, [context - 1, length - 2]], tokens[row, length - 1] = 3, 2
        tokens[row, length:] = PADDING
    return {"token_ids": tokens, "segment_ids": segments}


@pytest.mark.parametrize(
    "head", ["SequenceClassification", "TokenClassification", "MultipleChoice"]
)
def test_classes_tags_and_choices_of_an_xlnet_agree(head, tmp_path):
    theirs = peers.make("xlnet", tmp_path, f"For{head}", num_labels=3)
    # Hugging Face summarizes the last column, so its rows are padded on the left.
    read = macaron_tf.load(f"hugging-face:{tmp_path}")
    rows = task_rows(2 if head.startswith("Token") else 0)
    real = rows["token_ids"] != PADDING
    more = {"attention_mask": torch.tensor(real.astype("float32"))}
    given = rows
    if head == "MultipleChoice":
        given = {name: ids[None] for name, ids in rows.items()}
        more = {"attention_mask": more["attention_mask"][None]}
    expected = peers.hidden_states(theirs, given, **more).logits.numpy()
    found = numpy_of(read.network(given, training=False))
    check_equal(*((found[real], expected[real]) if head.startswith("Token") else (found, expected)))
    read.save_pretrained(tmp_path / "out", format="hugging-face")
    again = opened(type(theirs), tmp_path / "out")
    for name, weight in theirs.state_dict().items():
        if not name.endswith("mask_emb"):  # used in pre-training only
            np.testing.assert_array_equal(again.state_dict()[name], weight, name)


def test_the_answers_of_an_xlnet_agree(tmp_path):
    theirs = peers.make("xlnet", tmp_path, "ForQuestionAnsweringSimple")
    read, rows = read_hugging_face(tmp_path), task_rows()
    real = torch.tensor((rows["token_ids"] != PADDING).astype("float32"))
    answers = peers.hidden_states(theirs, rows, attention_mask=real)
    expected = torch.stack([answers.start_logits, answers.end_logits], dim=1).numpy()
    found = numpy_of(read.network(rows, training=False))
    for row, (context, length) in enumerate(((5, L), (3, L - 2))):
        check_equal(found[row, :, 0], expected[row, :, length - 1])
        check_equal(found[row, :, 1:context], expected[row, :, : context - 1])
        assert (found[row, :, context:] < -1e8).all()


@pytest.mark.parametrize("both", [False, True])
def test_both_streams_with_a_permutation_and_a_memory(both, tmp_path):
    """Content and query streams agree with Hugging Face over three segments with memory.

    If `both` is True, half of the batch is read backward.
    """
    theirs = peers.make("xlnet", tmp_path)
    read = read_hugging_face(tmp_path)
    theirs.transformer.bi_data = both
    backward = {"backward": np.arange(B) >= B // 2} if both else {}
    mems, past = None, read.network.init_memory(B)
    for seed in range(3):  # segments 2 and 3 have memory
        batch = two_stream_batch(peers.V, seed)
        memory = {"mems": mems, "use_mems": True, "output_hidden_states": True}
        found = peers.hidden_states(theirs, batch, **peers.stream_inputs(batch), **memory)
        outputs = read.network({**batch, **backward, "memory": past})
        mems, past = found.mems, outputs["memory"]
        content, query = found.hidden_states[-2:]  # of the last layer
        np.testing.assert_allclose(numpy_of(outputs["content"]), content.numpy(), atol=2e-5)
        np.testing.assert_allclose(numpy_of(outputs["query"]), query.numpy(), atol=2e-5)
        logits = numpy_of(outputs["masked_language"])
        np.testing.assert_allclose(logits[..., : peers.V], found.logits.numpy(), atol=5e-5)
        assert (logits[..., peers.V :] < -1e3).all()


@pytest.mark.parametrize("family", ["gpt2", "llama of one table"])
def test_several_ends_are_theirs_and_are_written_again(family, tmp_path):
    theirs = peers.make(family, tmp_path)
    file = tmp_path / "generation_config.json"
    read = macaron_tf.load(f"hugging-face:{tmp_path}")
    row = read.task.generator.row("he will")
    [plain] = theirs.generate(torch.tensor([row]), do_sample=False, max_new_tokens=12).tolist()
    ends = [read.special.end, plain[len(row) + 3]]
    fields = {**json.loads(file.read_text()), "eos_token_id": ends, "temperature": 0.5}
    file.write_text(json.dumps(fields))
    theirs = type(theirs).from_pretrained(tmp_path)
    [answer] = theirs.generate(torch.tensor([row]), do_sample=False, max_new_tokens=12).tolist()
    assert len(answer) <= len(row) + 4
    macaron_tf.load(f"hugging-face:{tmp_path}").save_pretrained(tmp_path / "own")
    read = macaron_tf.load(tmp_path / "own")
    greedy = {"temperature": 0.0, "max_tokens": 12}
    found = read.predict("he will", **greedy)
    assert found["tokens"] == len(answer) - len(row)
    assert "".join(read.stream("he will", **greedy)) == found["completion"]
    [[completion]] = read.task.generator.complete(["he will"], GenerationConfig(**greedy))
    assert [*completion.ids] == answer[len(row) :] and completion.ended
    read.save_pretrained(tmp_path / "out", format="hugging-face")
    written = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert written.items() <= fields.items() and written["eos_token_id"] == ends
