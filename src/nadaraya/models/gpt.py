"""KernelGPT: a decoder-only Transformer on `KernelSelfAttention`, as a transformers model.

`save_pretrained`, `from_pretrained`, the Auto classes and `generate` work as for any transformers model once
`nadaraya.models` is imported.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.errors import InputError, must_be
from nadaraya.kernels import Kernel
from nadaraya.kernels.bank import shared_by_layers
from nadaraya.models.block import (
    KernelGPTBlock,
    ShortConvolution,
    ValueEmbedding,
    fixed_starts,
    make_attention,
    make_norm,
)
from nadaraya.models.config import KernelGPTConfig
from nadaraya.models.inputs import check_cache, documents_of, embedded, key_mask_of, loading


class KernelGPTPreTrainedModel(PreTrainedModel):
    """Weight initialisation and what transformers needs to know of the family."""

    config_class = KernelGPTConfig
    config: KernelGPTConfig
    base_model_prefix = "model"
    _input_embed_layer = "embedding"
    supports_gradient_checkpointing = True
    _no_split_modules = ["KernelGPTBlock"]  # noqa: RUF012 (the base class declares it so)
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    # In half precision the period of a bank would be off by a token within a line of text.
    _keep_in_fp32_modules_strict = ["attention.position", "attention.content", "log_angle"]  # noqa: RUF012

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **options: Any) -> Any:
        """As the method of transformers, from safetensors alone; what fails is one line.

        Args:
            pretrained_model_name_or_path: folder, or name on the Hub.
            args: see `transformers.PreTrainedModel.from_pretrained`.
            options: the same; `dtype=torch.bfloat16`, fields of the configuration, ….

        Returns:
            The model, in eval mode.

        Raises:
            InputError: there is none, it is damaged, or an option is unknown.
        """
        with loading(pretrained_model_name_or_path, "a KernelGPT model"):
            options = {"use_safetensors": True, **options}
            return super().from_pretrained(pretrained_model_name_or_path, *args, **options)

    def _check_and_adjust_attn_implementation(
        self, attn_implementation: Any, *args: Any, **options: Any
    ) -> Any:
        """Refuse what a file may name: transformers would fetch it as code."""
        if attn_implementation not in (None, "eager", "sdpa", "nadaraya"):
            raise must_be("attn_implementation", "'eager', 'sdpa' or left out", attn_implementation)
        if self.config.output_attentions:
            return "eager"  # transformers saves no other beside it, and the operator is the same
        return attn_implementation or "sdpa"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and getattr(module, "ends_residual_branch", False):
            # The sum of 2L residual branches keeps the variance of one branch.
            std = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(module.weight, mean=0.0, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, ShortConvolution):
            init.zeros_(module.weight)
        elif isinstance(module, ValueEmbedding):
            init.constant_(module.scale, module.start)
        else:
            super()._init_weights(module)

    def initialize_weights(self) -> None:
        """Initialises every tensor that has no value yet, among them kernels that a checkpoint lacks."""
        super().initialize_weights()
        for block in self._blocks():
            tensors = fixed_starts(block.attention)
            if not all(getattr(tensor, "_is_hf_initialized", False) for tensor in tensors.values()):
                start = fixed_starts(make_attention(self.config, block.layer))
                for name, tensor in tensors.items():
                    init.copy_(tensor, start[name])

    def _resize_token_embeddings(self, *sizes: Any, **options: Any) -> nn.Embedding:
        """The embedding, and with it what tokens add to the values."""
        for block in self._blocks():
            if (added := block.value_embedding) is not None:
                added.table = self._get_resized_embeddings(added.table, *sizes, **options)
        return super()._resize_token_embeddings(*sizes, **options)

    def _blocks(self) -> list[KernelGPTBlock]:
        return [module for module in self.modules() if isinstance(module, KernelGPTBlock)]

    def kernel_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Full names and values of the kernels' parameters: banks, bandwidths, shifts, learned angles.

        What layers share has the name that it has in the first of them.
        """
        seen = set()
        for prefix, module in self.named_modules():
            if isinstance(module, KernelSelfAttention):
                for name, parameter in module.kernel_parameters():
                    if parameter not in seen:
                        seen.add(parameter)
                        yield f"{prefix}.{name}", parameter

    def lag_kernels(self) -> list[tuple[int, Kernel]]:
        """Layer index and kernel of every layer whose position is a kernel of the lag."""
        found = [(block.layer, block.attention.position) for block in self._blocks()]
        return [(layer, position) for layer, position in found if isinstance(position, Kernel)]


class KernelGPTModel(KernelGPTPreTrainedModel):
    """Embedding, blocks and a final norm.

    Args:
        config: the configuration.

    >>> import torch
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTModel
    >>> model = KernelGPTModel(KernelGPTConfig.preset("demo", variant="gpa-mul"))
    >>> model(torch.arange(8)[None]).last_hidden_state.shape
    torch.Size([1, 8, 128])
    """

    def __init__(self, config: KernelGPTConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embedding_norm = make_norm(config) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()
        self.blocks = nn.ModuleList(
            KernelGPTBlock(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.norm = make_norm(config)
        self.gradient_checkpointing = False
        self._tied_weights_keys = self._tied_banks()
        self.post_init()

    def _tied_banks(self) -> dict[str, str]:
        """Names of parameters that are the same as one of an earlier layer of the variant, with its name."""
        first: dict[str, int] = {}
        tied = {}
        for layer, variant in enumerate(self.config.layer_variants):
            source = first.setdefault(variant, layer)
            if layer > source:
                for name in shared_by_layers(self.blocks[layer]):
                    tied[f"blocks.{layer}.{name}"] = f"blocks.{source}.{name}"
        return tied

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """The banks that layers share, which do not depend on `tie_word_embeddings`."""
        if all_submodels:
            return dict(super().get_expanded_tied_weights_keys(all_submodels=True))
        return dict(self._tied_weights_keys)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **packing: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states of a batch of token sequences.

        Args:
            input_ids: (B, N) token numbers; or `inputs_embeds`. The number vocab_size stands for padding, as
                character tokenizers have it: any vector serves, because no token attends to it.
            attention_mask: (B, cached + N), 1 for tokens and 0 for padding; default no padding.
            position_ids: (N,) or (B, N), which say nothing new: they must count tokens one by one, from the
                length of the cache or from the first token after padding. Where they start again from 0 a
                new document begins, which sees nothing of those before; such rows have neither padding nor
                cache. A compiled model does not look at them.
            past_key_values: the cache of earlier tokens, made for this configuration. One of fixed size,
                `StaticCache(config=model.config, max_cache_len=…)`, is written in place, without gradients.
                Its filled part, which is all that is read, grows with every token: a compiled model would
                be compiled anew, and `generate` does not compile it.
            inputs_embeds: (B, N, D) in place of input_ids.
            use_cache: return a cache for the next tokens; default True when not training.
            output_attentions: return every layer's weights (B, H, N, cached + N), where a window is cached
                those of its tokens; default the configuration's, which is False unless it was set.
            output_hidden_states: return the input of every block and the final output; default as above.
            packing: `cu_seq_lens_q` and `cu_seq_lens_k`, (documents + 1,) places in one row where documents
                begin and the row ends, or `seq_idx`, (B, N) numbers of the documents, as transformers'
                collators say them in place of position_ids. `return_dict=False` gives a tuple.

        Returns:
            transformers' BaseModelOutputWithPast.

        Raises:
            InputError: neither or both inputs, tokens that the model does not have, a mask that is not
                (B, cached + N), positions that do not count tokens, packing that does not fit the rows, a
                cache that is full or made for another configuration, inputs_embeds in a model with
                value_embeddings, or another argument.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("input_ids or inputs_embeds must be given, and not both")
        if inputs_embeds is not None and self.config.value_embeddings is not None:
            raise InputError("input_ids must be given to a model with value_embeddings, got inputs_embeds")
        if input_ids is not None and input_ids.dim() != 2:
            raise must_be("input_ids", "of shape (batch, tokens)", tuple(input_ids.shape))
        tokens, hidden_states = None, inputs_embeds
        if input_ids is not None:  # the number after the vocabulary stands for padding
            tokens = input_ids.masked_fill(input_ids == self.config.vocab_size, 0)
            hidden_states = embedded(self.embedding, tokens, self.config.vocab_size)
        assert hidden_states is not None
        if output_attentions is None:
            output_attentions = bool(self.config.output_attentions)
        if output_hidden_states is None:
            output_hidden_states = bool(self.config.output_hidden_states)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        cached = 0 if past_key_values is None else int(past_key_values.get_seq_length())
        if past_key_values is not None:
            check_cache(past_key_values, cached + hidden_states.shape[1], self.config)
        key_mask = key_mask_of(attention_mask, hidden_states, cached)
        documents = documents_of(position_ids, packing, key_mask, hidden_states, cached)
        if documents is not None:
            past_key_values = None  # what follows continues none of the documents
        if self.embedding_norm is not None:
            hidden_states = self.embedding_norm(hidden_states)
        hidden_states = self.dropout(hidden_states)
        all_hidden_states: list[Tensor] = []
        all_weights: list[Tensor] = []
        for block in self.blocks:
            if output_hidden_states:
                all_hidden_states.append(hidden_states)
            hidden_states, weights = block(
                hidden_states,
                tokens=tokens,
                key_mask=key_mask,
                document_ids=documents,
                past_key_values=past_key_values,
                cached=cached,
                return_weights=output_attentions,
            )
            if weights is not None:
                all_weights.append(weights)
        hidden_states = self.norm(hidden_states)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden_states,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=(*all_hidden_states, hidden_states) if output_hidden_states else None,
            attentions=tuple(all_weights) if output_attentions else None,
        )


class KernelGPTForCausalLM(KernelGPTPreTrainedModel, GenerationMixin):
    """KernelGPT with an output layer: predicts the next token.

    Args:
        config: the configuration.

    >>> import torch
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", variant="gka-loo-bank"))
    >>> tokens = torch.arange(8)[None]
    >>> model(tokens, labels=tokens).logits.shape
    torch.Size([1, 8, 93])
    >>> model.generate(tokens, max_new_tokens=4, pad_token_id=0).shape
    torch.Size([1, 12])
    """

    _tied_weights_keys = {"lm_head.weight": "model.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: KernelGPTConfig) -> None:
        super().__init__(config)
        self.model = KernelGPTModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        # Assisted decoding takes tokens back, which a state cannot.
        self._is_stateful = any(block.attention.decodes_by_state for block in self.model.blocks)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the next token, and the loss where labels are given.

        Args:
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache, options: as
                for `KernelGPTModel.forward`.
            labels: (B, N) token numbers, shifted here: the loss is the mean cross-entropy, in nats/token, of
                token n + 1 given tokens up to n; −100 is left out. With logits_to_keep: those of the
                positions that are kept.
            logits_to_keep: how many of the last positions have logits, or their indices; 0 for all.
            num_items_in_batch: divides the summed loss, for trainers that accumulate gradients over several
                batches; default the number of predicted tokens.

        Returns:
            transformers' CausalLMOutputWithPast; logits (B, N, vocabulary) in the model's dtype.

        Raises:
            InputError: as for `KernelGPTModel.forward`, or labels that are not one for each of the logits.
        """
        out = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **options,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(out.last_hidden_state[:, kept])
        if (cap := self.config.logit_cap) is not None:
            logits = cap * torch.tanh(logits / cap)
        loss = None
        if labels is not None:
            if labels.shape != logits.shape[:2]:
                accepted = f"of shape (batch, tokens with logits) = {tuple(logits.shape[:2])}"
                raise must_be("labels", accepted, tuple(labels.shape))
            loss = self.loss_function(logits, labels, self.config.vocab_size, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=out.past_key_values,
            hidden_states=out.hidden_states,
            attentions=out.attentions,
        )

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **ignored: Any) -> Tensor | None:
        """The mask of `generate` as it is, which the model takes for caches of fixed size too."""
        return attention_mask

    def _valid_auto_compile_criteria(self, *args: Any, **options: Any) -> bool:
        """Never: the filled part of a cache grows with every token, and the graph would be made anew."""
        return False


AutoConfig.register(KernelGPTConfig.model_type, KernelGPTConfig)
AutoModel.register(KernelGPTConfig, KernelGPTModel)
AutoModelForCausalLM.register(KernelGPTConfig, KernelGPTForCausalLM)
