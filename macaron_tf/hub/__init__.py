"""Conversion of other libraries' models to macaron_tf, and export to Hugging Face's format.

`foreign_config` reads settings. `arrays` reads weights, and assigns them to macaron_tf variables by
a mapping of weight names. Each model family has its own mapping and rules (see `family`):
`encoder_families` (BERT and related encoders), `language_models` (GPT, GPT-2, Llama, XLNet),
`encoder_decoders` (T5, BART, MarianMT, Pegasus) and `keras_models` (KerasHub, Model Garden).
`task_heads` converts the heads of fine-tuned models.

Every reader raises a UserError if a required file is missing, if a file is damaged, or if
macaron_tf has no counterpart for the model's layers or settings. The message names the file,
setting or weight.
"""

from macaron_tf.hub.encoder_decoders import import_encoder_decoder, read_encoder_decoder
from macaron_tf.hub.encoders import read_encoder, read_sentence_transformer
from macaron_tf.hub.keras_models import (
    import_keras_hub_encoder,
    read_keras_hub,
    read_model_garden_bert,
)
from macaron_tf.hub.language_models import read_language_model, read_xlnet
from macaron_tf.pretrained import Pretrained
