"""PyTorch implementation of macaron_tf's encoders and causal language models.

The blocks are Transformer, Macaron, SwishRNN, BERT-rab, gMLP, aMLP and any other splitting scheme.
A folder with this file and weights can be loaded without macaron_tf:

    AutoModel.from_pretrained(DIR, trust_remote_code=True)
    AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True).generate(...)

A layer is one step of a numerical solver for the differential equation x' = f(x). The field
`layers` of `config.json` lists the sub-layers of each layer. A sub-layer computes one summand of f.
In shapes, B is the batch size, L is the sequence length, D is `hidden_dim`, and H is `num_heads`.
"""

import itertools
import math

import torch
from torch import nn
from torch.nn import functional
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers import modeling_outputs as outputs
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.utils import can_return_tuple

ACTIVATIONS = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    **{"relu": functional.relu, "silu": functional.silu},
    **{"tanh": torch.tanh, "sigmoid": torch.sigmoid},
}
# Explicit Runge-Kutta methods. Row n weights slopes 0 to n: their weighted sum leads to the next
# point where f is evaluated. The sum of the last row leads to the result.
SOLVERS = {
    "euler": ((1.0,),),
    "midpoint": ((1 / 2,), (0.0, 1.0)),
    "heun": ((1.0,), (1 / 2, 1 / 2)),
    "rk4": ((1 / 2,), (0.0, 1 / 2), (0.0, 0.0, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
}
# Settings with their defaults. `macaron_tf.models.EncoderConfig` documents the settings.
SETTINGS = {
    **{"vocab_size": 8, "hidden_dim": 8, "embedding_dim": None, "num_heads": 1, "head_dim": None},
    **{"num_layers": 0, "layers": (), "activation": "gelu", "gated": False},
    **{"scaled": True, "use_bias": True, "num_kv_heads": None, "qk_norm": "none"},
    **{"scale_dim": None, "rotary_dim": None, "rotary_scaling": ()},
    **{"norm": "post", "norm_type": "layer", "affine": True, "epsilon": 1e-12},
    **{"positions": "learned", "max_position_embeddings": 512, "toeplitz": True, "num_segments": 2},
    **{"embedding_norm": True, "embedding_scale": False, "initializer_range": 0.02},
    **{"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.0},
    **{"classifier_dropout": 0.1, "pooler_activation": "tanh"},
    **{"causal": False, "tie_word_embeddings": True, "output_bias": False},
}


class MacaronConfig(PretrainedConfig):
    """Configuration of a Macaron model. The attributes of the object are the keys of `SETTINGS`.

    The attribute `layers` contains a list of sub-layers for each layer. A sub-layer is a dict with
    these keys:

    - `name`: name of the weights. Sub-layers with the same name share weights.
    - `mixer`: key of `MIXERS`. The settings of the mixer are further keys.
    - `step_size`: step size of the solver.
    - `solver`: key of `SOLVERS`.

    These keys are optional:

    - `bias`: name of the relative position bias that the attention uses.
    - `window`: window size of sliding-window attention. Half of the window is on each side of a
      position. In a causal model, the window ends at the position itself.
    - `rotary_base`: base of the attention's rotary positions.
    - `joined`: whether the next sub-layer starts from the same input, so that both steps are added.
    - `norm`: name of another sub-layer whose norm is used; `None` means no norm.
    """

    model_type = "macaron"
    attribute_map = {  # noqa: RUF012 (transformers does not annotate this attribute either)
        "hidden_size": "hidden_dim",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
    }

    def __init__(self, **fields):
        super().__init__(**{**SETTINGS, **fields})


def layer_norm(config, width=None):
    """Builds a LayerNorm of size `width`, or a norm of size `hidden_dim` if `width` is None.

    Without `width`, the norm is an RMSNorm if `norm_type` is "rms", and a LayerNorm otherwise. If
    `norm_type` is "unbiased", no LayerNorm has an offset.
    """
    if width is None and config.norm_type == "rms":
        return nn.RMSNorm(config.hidden_dim, config.epsilon)
    options = {"elementwise_affine": config.affine, "bias": config.norm_type != "unbiased"}
    return nn.LayerNorm(width or config.hidden_dim, config.epsilon, **options)


def projection(width, output_width, bias=True):
    """Builds a linear layer between two widths, or the identity if the widths are equal."""
    is_needed = width != output_width
    return nn.Linear(width, output_width, bias=bias) if is_needed else nn.Identity()


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, followed by a norm and dropout."""

    def __init__(self, config):
        super().__init__()
        width = config.embedding_dim or config.hidden_dim
        self.scale = width**0.5 if config.embedding_scale else 1.0
        self.sinusoidal = config.positions == "sinusoidal"
        self.tokens = nn.Embedding(config.vocab_size, width)
        length = config.max_position_embeddings
        self.positions = nn.Embedding(length, width) if config.positions == "learned" else None
        count = config.num_segments
        self.segments = nn.Embedding(count, width) if count else None
        self.norm = layer_norm(config, width) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, ids, segment_ids, position_ids, vectors=None):
        x = self.tokens(ids) if vectors is None else vectors
        x = x * self.scale  # (B, L, E)
        if self.segments:
            if segment_ids is None or self.segments.num_embeddings == 1:
                segment_ids = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
            x = x + self.segments(segment_ids)
        if self.positions:
            x = x + self.positions(position_ids)
        elif self.sinusoidal:
            x = x + sinusoids(position_ids, x.shape[-1]).to(x.dtype)
        return self.dropout(self.norm(x))


def sinusoids(positions, width):
    """Computes sinusoidal embeddings `(..., L, width)` for `positions (..., L)`.

    Channels 2i and 2i + 1 are the sine and cosine of position / 10000^(2i / width).
    """
    half = torch.arange(width // 2, dtype=torch.float64, device=positions.device)
    frequencies = (10_000.0 ** (-2 * half / width)).float()
    angles = positions.float()[..., None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def rotary_angles(config, base, dim, positions):
    """Computes the angles `(..., L, dim / 2)` that rotary embeddings use for `positions (..., L)`.

    The setting `rotary_scaling` is empty, `(factor,)`, or Llama 3's `(factor, low, high, length)`.
    """
    frequencies = base ** (-2.0 * torch.arange(dim // 2, dtype=torch.float64) / dim)
    if config.rotary_scaling:
        factor, *bands = config.rotary_scaling
        unscaled = 0.0
        if bands:
            low, high, length = bands
            turns = length * frequencies / (2 * math.pi)
            unscaled = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        frequencies = frequencies * (unscaled + (1.0 - unscaled) / factor)
    return positions.float()[..., None] * frequencies.float().to(positions.device)


def rotate(x, angles):
    """Rotates the channel pairs (i, i + r / 2) of `x (B, H, L, d)` by `angles (B, 1, L, r / 2)`.

    The channels from r to d stay unchanged.
    """
    half = angles.shape[-1]
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second, unchanged = x.tensor_split([half, 2 * half], dim=-1)
    pair = [first * cosine - second * sine, second * cosine + first * sine]
    return torch.cat([*pair, unchanged], dim=-1)


def alibi(heads, distances):
    """Computes ALiBi's biases `(H, L, S)`: `-slope * |distance|`, with one slope per head."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * n / power) for n in range(1, power + 1)]
    slopes += [2.0 ** (-4.0 * n / power) for n in range(1, 2 * power, 2)]
    slopes = torch.tensor(slopes[:heads], device=distances.device)[:, None, None]
    return -slopes * distances.abs().float()


class Context:
    """Masks, positions and cache that all sub-layers share in one forward pass.

    L is the number of new positions. S is the number of all positions, with the cached positions.

    Attributes:
        mask: `(B, S)`, False at padding.
        positions: `(B, L)` or `(1, L)`, positions of the new tokens in their texts.
        distances: `(L, S)`, index of the key minus index of the query.
        cache: transformers' `Cache`, or `None`.
        slots: iterator over the indices of the cache's layers. Each evaluation of an attention or a
            recurrence takes the next index.
    """

    def __init__(self, mask, positions, cache):
        self.mask, self.positions, self.cache = mask, positions, cache
        self.slots = itertools.count()
        indices = torch.arange(mask.shape[1], device=mask.device)
        self.distances = indices - indices[-positions.shape[-1] :, None]

    def update(self, slot, key, value):
        """Appends keys and values to the cache. Returns them with the cached ones before them."""
        return (key, value) if self.cache is None else self.cache.update(key, value, slot)


class Attention(nn.Module):
    """Multi-head attention: `softmax(Q K^T / sqrt(d) + bias) V` in H heads of width d.

    If the setting `scaled` is False, there is no division by sqrt(d). If `scale_dim` is set, it
    replaces d there. If `num_kv_heads` is less than H, several query heads share each head of keys
    and values. If `qk_norm` is "head" or "heads", queries and keys pass an RMSNorm over each head,
    or over all heads together.
    """

    def __init__(self, config, settings, heads=None, head_dim=None, output_dim=None):
        super().__init__()
        self.config, self.is_tiny = config, head_dim is not None
        self.heads = heads or config.num_heads
        self.kv_heads = heads or config.num_kv_heads or config.num_heads
        self.head_dim = head_dim or config.head_dim or config.hidden_dim // self.heads
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.scale = None if config.scaled or self.is_tiny else 1.0  # None means 1 / sqrt(d)
        if config.scale_dim and not self.is_tiny:
            self.scale = config.scale_dim**-0.5
        self.window, self.rotary_base = settings.get("window", 0), settings.get("rotary_base")
        self.dropout = config.attention_dropout
        use_bias = config.use_bias or self.is_tiny
        self.widths = {"query": width, "key_value": 2 * kv_width}
        if self.kv_heads == self.heads:
            self.widths = {"query_key_value": 3 * width}
        for name, output_width in self.widths.items():
            self.add_module(name, nn.Linear(config.hidden_dim, output_width, bias=use_bias))
        self.output = nn.Linear(width, output_dim or config.hidden_dim, bias=use_bias)
        self.qk_norm = "none" if self.is_tiny else config.qk_norm
        if self.qk_norm != "none":
            scales = (width, kv_width) if self.qk_norm == "heads" else 2 * (self.head_dim,)
            self.query_scale, self.key_scale = (nn.Parameter(torch.ones(n)) for n in scales)

    def forward(self, x, context, bias=None):
        qkv = torch.cat([self.get_submodule(name)(x) for name in self.widths], dim=-1)
        qkv = qkv.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, H + 2 K, L, d)
        query, key, value = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.qk_norm != "none":
            query = self.normalize(query, self.query_scale)
            key = self.normalize(key, self.key_scale)
        if self.rotary_base:
            dim = self.head_dim if self.is_tiny else self.config.rotary_dim or self.head_dim
            angles = rotary_angles(self.config, self.rotary_base, dim, context.positions)
            angles = angles[:, None]  # (B, 1, L, r/2)
            query, key = rotate(query, angles), rotate(key, angles)
        key, value = context.update(next(context.slots), key, value)
        scores = self.scores(x.dtype, context, key.shape[2], bias)
        if self.kv_heads < self.heads:  # (B, K, S, d) -> (B, H, S, d)
            groups = self.heads // self.kv_heads
            key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        scores, dropout = scores.expand(-1, -1, x.shape[1], -1), self.dropout * self.training
        attend = functional.scaled_dot_product_attention
        y = attend(query, key, value, scores, dropout, scale=self.scale)
        return self.output(y.transpose(1, 2).flatten(2))

    def normalize(self, x, scale):
        """Applies the RMSNorm to queries or keys `(B, H, L, d)`."""
        shape = x.shape[3:] if self.qk_norm == "head" else x.shape[1::2]  # (d,) or (H, d)
        x = x.transpose(1, 2)  # (B, L, H, d)
        x = functional.rms_norm(x, shape, scale.view(shape), self.config.epsilon)
        return x.transpose(1, 2)

    def scores(self, dtype, context, length, bias):
        """Computes the scores that are added to `Q K^T`, for the last `length` positions."""
        distances = context.distances[:, -length:]  # (L, S)
        is_visible = context.mask[:, None, None, -length:]  # (B, 1, 1, S)
        if self.config.causal:
            is_visible = is_visible & (distances <= 0)
        if self.window:
            reach = self.window - 1 if self.config.causal else self.window // 2
            is_visible = is_visible & (distances.abs() <= reach)
        # A finite score excludes a position: a sequence of only padding does not give NaN.
        excluded = -1e4 if dtype == torch.float16 else -1e9
        scores = torch.zeros(is_visible.shape, dtype=dtype, device=distances.device)
        scores = scores.masked_fill(~is_visible, excluded)
        if self.config.positions == "alibi" and not self.is_tiny:
            bias = alibi(self.heads, distances)
        return scores if bias is None else scores + bias.to(dtype)


class FeedForward(nn.Module):
    """Feed-forward layer: `activation(x W1 + b1) W2 + b2`.

    If `gated` is set, the layer is `(activation(x W1 + b1) * (x V + c)) W2 + b2`.
    """

    def __init__(self, config, settings):
        super().__init__()
        self.gated, inner = config.gated, settings["inner_dim"]
        self.activation = ACTIVATIONS[settings["activation"]]
        output_dim = 2 * inner if self.gated else inner
        self.inner = nn.Linear(config.hidden_dim, output_dim, bias=config.use_bias)
        self.outer = nn.Linear(inner, config.hidden_dim, bias=config.use_bias)
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, x, context, bias=None):
        gate, *rest = self.inner(x).chunk(2 if self.gated else 1, dim=-1)
        y = self.activation(gate)
        return self.outer(self.dropout(y * rest[0] if rest else y))


class SwishRNN(nn.Module):
    """SwishRNN layer (Lei et al. 2022): `((C + b_c) * gate(x W2 + b_s)) W3 + b_3`.

    C is the recurrence `c[i] = Swish(c[i - k] - x1[i]) + x1[i]` over x1 = x W1, where k is the
    setting `distance` and `Swish(z) = sigmoid(alpha z + beta) z`. The recurrence consists of k
    independent chains, so one step of the loop advances all chains. R is the inner width. The cache
    contains the last k values of C.
    """

    def __init__(self, config, settings):
        super().__init__()
        width, self.distance = settings["inner_dim"], settings["distance"]
        self.gate = ACTIVATIONS[settings["gate"]]
        self.inner = nn.Linear(config.hidden_dim, 2 * width, bias=False)
        self.outer = nn.Linear(width, config.hidden_dim)
        self.alpha = nn.Parameter(torch.ones(width))
        for name in ("beta", "state_bias", "gate_bias"):
            self.register_parameter(name, nn.Parameter(torch.zeros(width)))
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, x, context, bias=None):
        x1, x2 = self.inner(x).chunk(2, dim=-1)  # each (B, L, R)
        c = self.recurrence(x1.float(), context).to(x.dtype)
        return self.outer(self.dropout((c + self.state_bias) * self.gate(x2 + self.gate_bias)))

    def recurrence(self, x, context):
        alpha, beta, length = self.alpha.float(), self.beta.float(), x.shape[1]
        slot, layers = next(context.slots), context.cache.layers if context.cache else []
        # (B, 1, k, R), or `None` before the first update.
        past = layers[slot].keys if slot < len(layers) else None
        past = x[:, :0] if past is None else past[:, 0]
        c = functional.pad(past, (0, 0, self.distance, 0))[:, -self.distance :]  # (B, k, R)
        padding = -length % self.distance
        inputs = functional.pad(x, (0, 0, 0, padding)).unflatten(1, (-1, self.distance))
        is_real = functional.pad(context.mask[:, -length:], (0, padding))
        is_real, states = is_real.unflatten(1, (-1, self.distance))[..., None], []
        for index in range(inputs.shape[1]):
            difference = c - inputs[:, index]
            updated = torch.sigmoid(alpha * difference + beta) * difference + inputs[:, index]
            c = torch.where(is_real[:, index], updated, c)  # padding does not change the state
            states.append(c)
        y = torch.stack(states, dim=1).flatten(1, 2)[:, :length]
        context.update(slot, y[:, None], y[:, None, :, :0])
        return y


class Gating(nn.Module):
    """Spatial gating of gMLP: `u * (W norm(v) + b)`.

    The input `(B, L, F)` is split into u and v, each `(B, L, F / 2)`. W `(L, L)` mixes positions.
    The parameters of W are a full matrix, or a Toeplitz matrix with one weight per distance.
    """

    def __init__(self, config, width):
        super().__init__()
        length = config.max_position_embeddings
        self.norm = layer_norm(config, width)
        shape = (2 * length - 1,) if config.toeplitz else (length, length)
        self.kernel = nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.ones(length))

    def forward(self, z, mask, addition):
        u, v = z.chunk(2, dim=-1)  # each (B, L, F / 2)
        v = self.norm(v).masked_fill(~mask[..., None], 0.0)
        length, indices = v.shape[1], torch.arange(v.shape[1], device=v.device)
        if self.kernel.ndim == 2:
            kernel = self.kernel[:length, :length]
        else:  # W[t, s] = self.kernel[max_position_embeddings - 1 + s - t]
            kernel = self.kernel[len(self.bias) - 1 + indices - indices[:, None]]
        gate = kernel @ v + self.bias[:length, None]
        return u * (gate if addition is None else gate + addition)


class GatedMLP(nn.Module):
    """Block of gMLP or aMLP (Liu et al. 2021).

    In aMLP, the output of a single-head attention is added to the gate.
    """

    def __init__(self, config, settings):
        super().__init__()
        inner, attention_dim = settings["inner_dim"], settings["tiny_attention_dim"]
        self.activation = ACTIVATIONS[settings["activation"]]
        self.inner = nn.Linear(config.hidden_dim, inner)
        self.outer = nn.Linear(inner // 2, config.hidden_dim)
        self.gating = Gating(config, inner // 2)
        sizes = (1, attention_dim, inner // 2)
        self.tiny_attention = Attention(config, settings, *sizes) if attention_dim else None
        self.dropout = nn.Dropout(config.activation_dropout)

    def forward(self, x, context, bias=None):
        addition = self.tiny_attention(x, context) if self.tiny_attention else None
        z = self.dropout(self.activation(self.inner(x)))
        return self.outer(self.gating(z, context.mask, addition))


MIXERS = {
    **{"attention": Attention, "feed_forward": FeedForward},
    **{"swish_rnn": SwishRNN, "gated_mlp": GatedMLP},
}


class SubLayer(nn.Module):
    """Mixer, such as attention, with its norm and dropout.

    A sub-layer computes one summand of f in the differential equation x' = f(x).
    """

    def __init__(self, config, settings):
        super().__init__()
        self.norm_place, self.mixer_name = config.norm, settings["mixer"]
        self.norm = None if "norm" in settings else layer_norm(config)
        self.dropout = nn.Dropout(config.dropout)
        self.add_module(self.mixer_name, MIXERS[self.mixer_name](config, settings))

    def forward(self, base, x, norm, step_size, solver, context, bias):
        """Returns `base` plus one step of the solver, whose start point is `x`."""
        mixer, point, slopes = self.get_submodule(self.mixer_name), x, []
        for row in SOLVERS[solver]:
            point = norm(point) if self.norm_place == "pre" else point
            slope = mixer(point, context, bias)
            slopes.append(self.dropout(norm(slope) if self.norm_place == "output" else slope))
            step = sum(step_size * w * slope for w, slope in zip(row, slopes, strict=True))
            point = x + step
        return base + step


class RelativeBias(nn.Module):
    """Relative position bias `(1, H, L, S)` of T5, with one weight per head and distance bucket.

    In an encoder, half of the buckets are for keys after the query.
    """

    def __init__(self, config, buckets=32, max_distance=128):
        super().__init__()
        self.table, self.causal = nn.Embedding(buckets, config.num_heads), config.causal
        self.buckets, self.max_distance = buckets if self.causal else buckets // 2, max_distance

    def forward(self, distances):
        absolute = (-distances).clamp(min=0) if self.causal else distances.abs()
        exact = self.buckets // 2
        span = math.log(self.max_distance / exact)
        ratio = torch.log(absolute.clamp(min=1).float() / exact) / span
        log_bucket = exact + (ratio * (self.buckets - exact)).long()
        buckets = torch.where(absolute < exact, absolute, log_bucket.clamp(max=self.buckets - 1))
        if not self.causal:
            buckets = buckets + self.buckets * (distances > 0)
        return self.table(buckets).permute(2, 0, 1)[None]


class Stack(nn.Module):
    """Stack of layers, with a final norm unless the layers are post-norm."""

    def __init__(self, config):
        super().__init__()
        self.layers = config.layers
        for settings in itertools.chain.from_iterable(config.layers):
            block, name = settings["name"].split(".")
            if block not in self._modules:
                self.add_module(block, nn.ModuleDict())
            if name not in self._modules[block]:
                self._modules[block][name] = SubLayer(config, settings)
            if settings.get("bias") and settings["bias"] not in self._modules:
                self.add_module(settings["bias"], RelativeBias(config))
        self.is_post_norm = config.norm == "post"
        self.final_norm = None if self.is_post_norm else layer_norm(config)

    def forward(self, x, context):
        """Returns a tuple of `x` and the output of each layer, each `(B, L, D)`.

        Only the last output includes the final norm.
        """
        states, biases = [x], {}
        for layer in self.layers:
            start = x
            for settings in layer:
                name = settings.get("bias")
                if name and name not in biases:
                    biases[name] = self.get_submodule(name)(context.distances)
                sublayer = self.get_submodule(settings["name"])
                owner = settings.get("norm", settings["name"])
                norm = self.get_submodule(owner).norm if owner else nn.Identity()
                step_options = (norm, settings["step_size"], settings["solver"])
                x = sublayer(x, start, *step_options, context, biases.get(name))
                if not settings.get("joined"):
                    start = x = norm(x) if self.is_post_norm else x
            states.append(x)
        if self.final_norm:
            states[-1] = self.final_norm(x)
        return tuple(states)


class MacaronPreTrainedModel(PreTrainedModel):
    config_class = MacaronConfig
    base_model_prefix = "macaron"
    accepts_loss_kwargs = False  # a loss is a mean: transformers' `Trainer` accumulates it right


class MacaronModel(MacaronPreTrainedModel):
    """Network without a head, which maps ids `(B, L)` to hidden states `(B, L, D)`."""

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = Embeddings(config)
        width = config.embedding_dim or config.hidden_dim
        self.projection = projection(width, config.hidden_dim)
        self.stack = Stack(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings.tokens

    def set_input_embeddings(self, value):
        self.embeddings.tokens = value

    def new_cache(self):
        """Creates an empty cache for a causal model.

        The layers of the cache belong to the evaluations of attentions and recurrences in order.
        """
        layers = []
        for settings in itertools.chain.from_iterable(self.config.layers):
            if settings["mixer"] == "feed_forward":
                continue
            # `DynamicSlidingWindowLayer` keeps one position less, as the window includes the query.
            is_recurrent = settings["mixer"] == "swish_rnn"
            window = settings["distance"] + 1 if is_recurrent else settings.get("window", 0)
            for _ in SOLVERS[settings["solver"]]:
                layers.append(DynamicSlidingWindowLayer(window) if window else DynamicLayer())
        return Cache(layers)

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        past_key_values=None,
        use_cache=False,
        output_hidden_states=None,
        **kwargs,
    ):
        cache = past_key_values
        if use_cache and cache is None and self.config.causal:
            cache = self.new_cache()
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        start = 0 if cache is None else cache.get_seq_length()
        end = start + inputs.shape[1]
        if position_ids is None:
            position_ids = torch.arange(start, end, device=inputs.device)[None]
            if self.config.causal and attention_mask is not None:  # padding may be on the left
                position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, start:]
        if attention_mask is None:
            attention_mask = torch.ones(inputs.shape[0], end, device=inputs.device)
        context = Context(attention_mask.bool(), position_ids, cache)
        x = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        states = self.stack(self.projection(x), context)
        return outputs.BaseModelOutputWithPast(
            last_hidden_state=states[-1],
            past_key_values=cache,
            hidden_states=states if output_hidden_states else None,
        )


class MaskedLanguageHead(nn.Module):
    """Masked language head: `LayerNorm(activation(x W + b)) E^T + bias`.

    E is the table of token embeddings.
    """

    def __init__(self, config):
        super().__init__()
        width = config.embedding_dim or config.hidden_dim
        self.activation = ACTIVATIONS[config.activation]
        use_bias = config.norm_type != "unbiased"
        self.dense = nn.Linear(config.hidden_dim, width, bias=use_bias)
        self.norm = nn.LayerNorm(width, config.epsilon, bias=use_bias)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x, table):
        x = self.norm(self.activation(self.dense(x)))
        return functional.linear(x, table, self.bias)


class NextTokenHead(nn.Module):
    """Output layer of a language model: `x P E^T + bias`.

    E is the table of token embeddings or, in an untied model, `output_table`. P is the identity if
    both have the same width.
    """

    def __init__(self, config):
        super().__init__()
        width = config.embedding_dim or config.hidden_dim
        self.projection = projection(config.hidden_dim, width, bias=False)
        tied, size = config.tie_word_embeddings, config.vocab_size
        self.output_table = None if tied else nn.Linear(width, size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.output_bias else None

    def forward(self, x, table):
        table = self.output_table.weight if self.output_table else table
        return functional.linear(self.projection(x), table, self.bias)


class HeadModel(MacaronPreTrainedModel):
    """Base class of models whose loss is the mean over labels.

    The method `scores` returns the head's logits and a tuple of all hidden states, which is `None`
    without `output_hidden_states=True`. `output_class` is the class of the result.
    """

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
        logits, states = self.scores(input_ids, attention_mask, **kwargs)  # (B, C) or (B, L, C)
        if labels is not None and logits.shape[-1] == 1:  # numbers
            loss = functional.mse_loss(logits[..., 0], labels.float())
        else:
            loss = cross_entropy(logits, labels)
        return self.output_class(loss=loss, logits=logits, hidden_states=states)


class TokenModel(HeadModel):
    """Base class of models that predict tokens. `head_class` computes the logits `(B, L, V)`."""

    def __init__(self, config):
        super().__init__(config)
        self.macaron = MacaronModel(config)
        self.add_module(self.head_name, self.head_class(config))
        self.post_init()

    def logits(self, x):
        return self.get_submodule(self.head_name)(x, self.macaron.embeddings.tokens.weight)

    def scores(self, *args, **kwargs):
        out = self.macaron(*args, return_dict=True, **kwargs)
        return self.logits(out.last_hidden_state), out.hidden_states

    def resize_token_embeddings(self, *args, **kwargs):
        """Resizes the token embeddings and the head's bias. The bias of new tokens is 0."""
        table = super().resize_token_embeddings(*args, **kwargs)
        head = self.get_submodule(self.head_name)
        if head.bias is not None:
            more = table.num_embeddings - len(head.bias)
            head.bias = nn.Parameter(functional.pad(head.bias.data, (0, more)))
        return table


class MacaronForMaskedLM(TokenModel):
    head_name, head_class = "masked_language", MaskedLanguageHead
    output_class = outputs.MaskedLMOutput


class MacaronForCausalLM(TokenModel, GenerationMixin):
    """Causal language model. The label of a position is the id of this position, not the next."""

    head_name, head_class = "language_head", NextTokenHead

    @classmethod
    def _supports_default_dynamic_cache(cls):
        return False  # `generate` then uses the cache that the first forward pass creates

    def get_output_embeddings(self):
        return self.language_head.output_table

    def set_output_embeddings(self, value):
        self.language_head.output_table = value

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        labels=None,
        logits_to_keep=0,
        **kwargs,
    ):
        kwargs = {"position_ids": position_ids, "return_dict": True, **kwargs}
        out = self.macaron(input_ids, attention_mask, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.logits(out.last_hidden_state[:, kept])
        loss = None if labels is None else cross_entropy(logits[:, :-1], labels[:, 1:])
        return outputs.CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=out.past_key_values,
            hidden_states=out.hidden_states,
        )


class TaskModel(HeadModel):
    """Base class of task models: the network with a task head of dropout and a linear layer.

    If `pooled` is True, the head reads the pooler `activation(x[0] W + b)`, where x[0] is the first
    position. If `norm_type` is "unbiased", the pooler ends with a norm. In a causal model, the head
    reads the last token that is not padding, without a pooler. If `pooled` is False, the head reads
    every position.
    """

    pooled = False
    num_scores = None  # None means one score per label

    def __init__(self, config):
        super().__init__(config)
        width = config.hidden_dim
        self.macaron = MacaronModel(config)
        if self.pooled and not config.causal:
            unbiased = config.norm_type == "unbiased"
            norm = layer_norm(config) if unbiased else nn.Identity()
            dense = nn.Linear(width, width, bias=not unbiased)
            self.pooler = nn.ModuleDict({"dense": dense, "norm": norm})
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.head = nn.ModuleDict({"dense": nn.Linear(width, self.num_scores or config.num_labels)})
        self.post_init()

    def scores(self, input_ids=None, attention_mask=None, *args, **kwargs):
        out = self.macaron(input_ids, attention_mask, *args, return_dict=True, **kwargs)
        x = out.last_hidden_state
        if self.pooled and self.config.causal:
            is_real = attention_mask
            if attention_mask is None:  # as in transformers' classifiers
                is_real = input_ids != getattr(self.config, "pad_token_id", None)
            positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2])
            last = (positions * is_real).argmax(-1)
            x = x.take_along_dim(last[:, None, None], dim=1)[:, 0]  # (B, D)
        elif self.pooled:
            x = ACTIVATIONS[self.config.pooler_activation](self.pooler["dense"](x[:, 0]))
            x = self.pooler["norm"](x)
        return self.head["dense"](self.dropout(x)), out.hidden_states


class MacaronForSequenceClassification(TaskModel):
    pooled = True
    output_class = outputs.SequenceClassifierOutput


class MacaronForTokenClassification(TaskModel):
    output_class = outputs.TokenClassifierOutput


class MacaronForMultipleChoice(TaskModel):
    pooled, num_scores = True, 1
    output_class = outputs.MultipleChoiceModelOutput

    def scores(self, input_ids, attention_mask=None, token_type_ids=None, **kwargs):
        inputs = (input_ids, attention_mask, token_type_ids)  # (B, choices, L) each
        rows = (None if ids is None else ids.flatten(0, 1) for ids in inputs)
        logits, states = super().scores(*rows, **kwargs)
        return logits.view(input_ids.shape[:2]), states


class MacaronForQuestionAnswering(TaskModel):
    num_scores = 2

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        start_positions=None,
        end_positions=None,
        **kwargs,
    ):
        logits, states = self.scores(input_ids, attention_mask, **kwargs)
        start, end = logits.unbind(-1)  # (B, L) each
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (cross_entropy(start, start_positions) + cross_entropy(end, end_positions)) / 2
        return outputs.QuestionAnsweringModelOutput(loss, start, end, states)


def cross_entropy(logits, labels):
    """Returns the mean cross-entropy over all labels except -100, or None if `labels` is None."""
    if labels is None:
        return None
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
