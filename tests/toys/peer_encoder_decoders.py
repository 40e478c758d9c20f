"""T5, BART and MarianMT models of the transformers library with random weights."""

import pytest

from tests.toys.vocabularies import byte_pair_tokenizer, train_sentencepiece

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, LENGTH = 60, 12
WIDTHS = {
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def shaken(kind, config, scale, seeds=(1, 0), constant="none", own_output=False):
    """Returns a Hugging Face model with noise added to its initial weights.

    Args:
        kind: class of the model.
        config: configuration of the model.
        scale: standard deviation of the noise.
        seeds: seeds of the initial weights and of the noise. If the second seed is `None`, the
            noise continues the random sequence of the weights.
        constant: weights with this text in their name get no noise.
        own_output: whether the output matrix is untied, as in T5 1.1.
    """
    torch.manual_seed(seeds[0])
    model = kind(config).eval()
    if own_output:
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(config.vocab_size, 32))
    if seeds[1] is not None:
        torch.manual_seed(seeds[1])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if constant not in name:
                weight.add_(scale * torch.randn(weight.shape))
    return model


def marian(activation="relu", scaled=True):
    """Returns a MarianMTModel with random weights, whose decoder starts with the padding token."""
    config = transformers.MarianConfig(
        vocab_size=VOCAB,
        **WIDTHS,
        encoder_layers=2,
        decoder_layers=3,
        max_position_embeddings=64,
        activation_function=activation,
        scale_embedding=scaled,
        pad_token_id=VOCAB - 1,
        decoder_start_token_id=VOCAB - 1,
        eos_token_id=0,
        forced_eos_token_id=None,
    )
    return shaken(transformers.MarianMTModel, config, 0.2, (0, None), "embed_positions")


T5 = {
    "d_model": 32,
    "d_kv": 6,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


def t5_directory(directory):
    """Saves a T5 and its tokenizer; returns the model and the tokenizer.

    The embedding table has unused rows, as in published models.
    """
    proto = train_sentencepiece(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (directory / "spiece.model").write_bytes(proto)
    tokenizer = transformers.T5Tokenizer.from_pretrained(directory)
    config = transformers.T5Config(
        vocab_size=192,
        **{**T5, "d_kv": 8, "num_layers": 2, "num_decoder_layers": 2},
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )
    model = shaken(transformers.T5ForConditionalGeneration, config, 0.6, (0, None))
    model.save_pretrained(directory)
    return model, tokenizer


def bart_directory(directory, **settings):
    """Saves a BART and its tokenizer; returns the model and the tokenizer.

    `settings` are generation settings, such as `forced_bos_token_id`.
    """
    mask = transformers.AddedToken("<mask>", lstrip=True, special=True)
    kind = transformers.BartTokenizer
    tokenizer = byte_pair_tokenizer(kind, "its own", directory, mask_token=mask)
    config = transformers.BartConfig(
        vocab_size=len(tokenizer),
        **WIDTHS,
        encoder_layers=2,
        decoder_layers=2,
        max_position_embeddings=40,
        forced_eos_token_id=None,
    )
    model = shaken(transformers.BartForConditionalGeneration, config, 0.3, (0, None))
    model.final_logits_bias.normal_(std=0.1)
    with torch.no_grad():
        model.model.decoder.embed_positions.weight.mul_(10)
        for layer in model.model.decoder.layers:
            layer.encoder_attn.out_proj.weight.mul_(0.2)
            layer.encoder_attn.out_proj.bias.mul_(0.2)
    model.generation_config.update(**settings)
    model.save_pretrained(directory)
    return model, tokenizer
