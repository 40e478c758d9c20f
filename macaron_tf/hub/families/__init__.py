"""Families of models in Hugging Face's format: names, settings, weights and heads."""

from macaron_tf.hub.families.bart import BART, MARIAN
from macaron_tf.hub.families.bert import ALBERT, BERT, DISTILBERT, ELECTRA, ROBERTA, XLM_ROBERTA
from macaron_tf.hub.families.gpt import GPT, GPT2
from macaron_tf.hub.families.llama import LLAMA, OLMO2, QWEN3
from macaron_tf.hub.families.macaron import MACARON
from macaron_tf.hub.families.modernbert import MODERNBERT
from macaron_tf.hub.families.t5 import T5
from macaron_tf.hub.families.xlm import XLM
from macaron_tf.hub.families.xlnet import XLNET
from macaron_tf.hub.family import Family

_ENCODERS = (DISTILBERT, BERT, ROBERTA, XLM_ROBERTA, ALBERT, ELECTRA, XLM, MODERNBERT, MACARON)
_OTHERS = (GPT, GPT2, LLAMA, QWEN3, OLMO2, XLNET, T5, BART, MARIAN)
# Dict mapping Hugging Face's `model_type` to the family. A model is written as the first family
# that has all its parts and settings.
FAMILIES: dict[str, Family] = {family.model_type: family for family in (*_ENCODERS, *_OTHERS)}
