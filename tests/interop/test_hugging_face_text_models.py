"""Hugging Face's T5 and BART with their tokenizers: the same texts follow from the same texts."""

import pytest

from macaron_tf.decoding import GenerationConfig, SequenceGenerator
from macaron_tf.interop.hugging_face_text_models import (
    is_text_model,
    read_hugging_face_text_model,
)
from macaron_tf.text.words import spelled
from tests.interop.test_hugging_face_vocabularies import byte_pair_tokenizer, train_sentencepiece

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = 12


def shaken(model, scale):
    """The model with other than its first numbers in every place: answers of several words."""
    model.eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(scale * torch.randn(weight.shape))
    return model


def t5_directory(directory):
    """A T5 with its tokenizer, which has rows to spare as the published ones."""
    torch.manual_seed(0)
    proto = train_sentencepiece(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (directory / "spiece.model").write_bytes(proto)
    tokenizer = transformers.T5Tokenizer.from_pretrained(directory)
    config = transformers.T5Config(
        vocab_size=192,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )
    model = shaken(transformers.T5ForConditionalGeneration(config), 0.6)
    model.save_pretrained(directory)
    return model, tokenizer


def bart_directory(directory):
    """A BART with its tokenizer."""
    torch.manual_seed(0)
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    kind = transformers.BartTokenizer
    tokenizer = byte_pair_tokenizer(kind, "its own", directory, mask_token=mask)
    config = transformers.BartConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=40,
        forced_eos_token_id=None,
    )
    model = shaken(transformers.BartForConditionalGeneration(config), 0.3)
    model.final_logits_bias.normal_(std=0.1)
    with torch.no_grad():
        model.model.decoder.embed_positions.weight.mul_(10)
        for layer in model.model.decoder.layers:
            layer.encoder_attn.out_proj.weight.mul_(0.2)
            layer.encoder_attn.out_proj.bias.mul_(0.2)
    model.save_pretrained(directory)
    return model, tokenizer


@pytest.mark.parametrize("system", ["t5", "bart"])
def test_greedy_answers_are_theirs(system, tmp_path):
    theirs, tokenizer = {"t5": t5_directory, "bart": bart_directory}[system](tmp_path)
    assert is_text_model(tmp_path)
    found = read_hugging_face_text_model(tmp_path)
    generator = SequenceGenerator(
        found.model,
        found.vocabulary,
        found.model.config.longest,
        found.sentinels,
        **found.ends,
    )
    gaps = their_gaps = "the quick [MASK] fox jumped [MASK] dog."
    for name in {"t5": ("<extra_id_0>", "<extra_id_1>"), "bart": ("<mask>",) * 2}[system]:
        their_gaps = their_gaps.replace("[MASK]", name, 1)
    # What ours never writes: special tokens, and rows to spare.
    barred, start = {
        "t5": ([0, 2, *range(175, 192)], [[0]]),
        "bart": ([0, 1, 3, tokenizer.mask_token_id], [[2, 0]]),
    }[system]
    places = {theirs: ours for ours, theirs in enumerate(found.ids) if ours > 4 or ours == 3}
    texts = [gaps, "Der schnelle braune Fuchs", "naïve €", "1,234.56 in many texts."]
    config = GenerationConfig(temperature=0.0, max_tokens=TOKENS)
    different = set()
    for text, [ours] in zip(texts, generator.complete(texts, config), strict=True):
        asked = tokenizer(their_gaps if text == gaps else text, return_tensors="pt")
        assert found.ids[generator.row(text)].tolist() == asked["input_ids"][0].tolist()
        [answer] = theirs.generate(
            **asked,
            decoder_input_ids=torch.tensor(start),
            forced_bos_token_id=None,
            suppress_tokens=barred,
            do_sample=False,
            num_beams=1,
            max_new_tokens=TOKENS,
        ).tolist()
        new = [places[number] for number in answer[len(start[0]) :]]
        assert ours.text == spelled(generator.spellings, new).removeprefix(" ")
        assert ours.length == len(new)
        assert "".join(generator.stream(text, config)) == ours.text
        different.update(new)
    assert len(different) > 5
