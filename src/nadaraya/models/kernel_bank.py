"""`attach_kernel_bank`: a gated kernel of the lag in a model that exists, trained and saved as an adapter."""

import copy
import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from nadaraya.errors import InputError, must_be
from nadaraya.files import is_file, reading, write_into
from nadaraya.kernels import ComposedKernel, Kernel, KernelBank
from nadaraya.models.gated import BANK, GatedKernel, Place, unwrapped
from nadaraya.names import HUB
from nadaraya.stored import Stored, read_stored

_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"  # the names of peft
_TERMS = 4
BANK_FOLDER = "bank"  # of a converted model, in its own

KernelOfHeads = str | Kernel | Callable[[int], Kernel]


class _Saved(Stored):
    """The content of an adapter_config.json."""

    peft_type: Literal["NADARAYA_KERNEL_BANK"] = "NADARAYA_KERNEL_BANK"
    base_model_name_or_path: str | None = None
    kernel: str | None
    kernels: list[str] | None = None  # their classes with what is no tensor, for a kernel that was no text
    target_modules: list[str]


class KernelBankAdapter(nn.Module):
    """The kernels that `attach_kernel_bank` added to a model, with all their parameters.

    Attributes:
        banks: one module for each layer, with `gate` (H,) and `kernel`.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from nadaraya.models import KernelBankAdapter, attach_kernel_bank
    >>> sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2)
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes))
    >>> adapter = attach_kernel_bank(model)
    >>> adapter.save_pretrained("bank")
    >>> adapter.detach()
    >>> len(KernelBankAdapter.from_pretrained(model, "bank").banks)
    2
    """

    def __init__(self, places: dict[str, nn.Module], saved: _Saved, leave: Callable[[], None]) -> None:
        super().__init__()
        self.banks = nn.ModuleList(getattr(module, BANK) for module in places.values())
        self._places, self._saved = places, saved
        self._leave: Callable[[], None] | None = leave

    def detach(self) -> None:
        """Give the model back as it was; beside adapters of peft, what was frozen stays so."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write adapter_config.json and adapter_model.safetensors, with names as peft's, whose own stay."""
        if is_file(Path(folder) / _CONFIG):
            read_stored(Path(folder) / _CONFIG, _Saved, "the configuration of a kernel bank")
        with write_into(Path(folder)) as scratch:
            save_file({n: t.detach().contiguous() for n, t in self._tensors().items()}, scratch / _TENSORS)
            (scratch / _CONFIG).write_text(self._saved.model_dump_json(indent=2), encoding="utf-8")

    @classmethod
    def from_pretrained(
        cls, model: Any, folder: str | Path, kernel: KernelOfHeads | None = None, *, freeze: bool = True
    ) -> "KernelBankAdapter":
        """Attach the kernels that `save_pretrained` wrote.

        Args:
            model, kernel, freeze: as for `attach_kernel_bank`; a kernel that was given as text need not be.
            folder: with the two files, or hf:NAME, a repository at the hub that has them.

        Raises:
            InputError: the folder has no kernels, or not those of such a model, which is then as it was.
        """
        folder = _at_hub(str(folder).removeprefix(HUB)) if str(folder).startswith(HUB) else Path(folder)
        saved = read_stored(folder / _CONFIG, _Saved, "the configuration of a kernel bank")
        if kernel is None and (kernel := saved.kernel) is None:
            raise InputError(f"{folder} must be loaded with kernel=…: what was attached was no expression")
        with reading(folder / _TENSORS, "the tensors of a kernel bank"):
            tensors = load_file(folder / _TENSORS)
        adapter = attach_kernel_bank(model, kernel, layers=saved.target_modules, freeze=freeze)
        if saved.kernels not in (None, adapter._saved.kernels):
            adapter.detach()
            raise must_be("kernel", f"of the classes in {folder}, {saved.kernels}", adapter._saved.kernels)
        own = adapter._tensors()
        misfits = {(n, t.shape) for n, t in own.items()} ^ {(n, t.shape) for n, t in tensors.items()}
        if misfits:
            adapter.detach()
            raise InputError(f"{folder} has another kernel or number of heads than the model: {min(misfits)}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])
        return adapter

    def _tensors(self) -> dict[str, Tensor]:
        banks = dict(zip(self._places, self.banks, strict=True))
        for name, module in self._places.items():
            there: Any = getattr(module, BANK, None)
            if hasattr(there, "modules_to_save"):  # peft trains a copy
                banks[name] = there.modules_to_save[there.active_adapters[0]]
        return {
            f"base_model.model.{module}.{BANK}.{name}": tensor
            for module, bank in banks.items()
            for name, tensor in bank.state_dict(keep_vars=True).items()
        }


def attach_kernel_bank(
    model: Any,
    kernel: KernelOfHeads = "bank",
    *,
    layers: Sequence[int | str] | None = None,
    freeze: bool = True,
) -> KernelBankAdapter:
    """Add a gated kernel of the lag to every head of a model that exists: logits + g_h κ_h(i − j).

    The gates g are 0 at first: the model computes what it did, bit for bit, by its own implementation of
    attention, and the gates have gradients. Once they are open the operator does the whole call, in O(N)
    memory. Compiled calls always leave it to the operator: their start is equal up to rounding.

    Args:
        model: of transformers, whose attention goes through the AttentionInterface as "eager", "sdpa" or
            "nadaraya", or of timm, with its plain attention. In vision models κ is of the rows and columns
            between patches; class and register tokens have none, nor has attention to another sequence.
        kernel: "bank" (default), a `KernelBank` of 4 terms, κ(0) = 1, lengths spread over the heads, "bank-8"
            of 8; an expression for `ComposedKernel`; a kernel, which is copied; or a function of the number
            of heads.
        layers: which attention modules, by their order or names; default all.
        freeze: whether all other parameters stop learning. Default True.

    Returns:
        The adapter. Its parameters are in the model's state dict too, as checkpoints of Trainer need; a plain
        model that loads such a file warns of them.

    Raises:
        InputError: another model, one that has kernels already, or a kernel or layers that it cannot have.

    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from nadaraya.models import attach_kernel_bank
    >>> sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2)
    >>> model, tokens = LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes)), torch.tensor([[3, 4, 5]])
    >>> before = model(tokens).logits
    >>> adapter = attach_kernel_bank(model)
    >>> torch.equal(model(tokens).logits, before), sum(p.numel() for p in adapter.parameters())
    (True, 68)
    """
    model = unwrapped(model)
    kind = "attach" if hasattr(model, "set_attn_implementation") else "vit"
    if kind == "vit" and not hasattr(model, "patch_embed"):
        raise must_be("model", "one of transformers, or a vision transformer of timm", type(model))
    home = import_module(f"nadaraya.models.{kind}.beside")
    found: dict[str, Place] = home.places(model)
    if not found:
        accepted = "one whose self-attention goes through transformers' AttentionInterface, or timm's plain"
        raise must_be("model", accepted, type(model).__name__)
    if any(hasattr(place.module, BANK) for place in found.values()):
        raise must_be("model", "one without a kernel bank: detach it first", type(model).__name__)
    known: dict[Any, str] = dict(enumerate(found)) | dict(zip(found, found, strict=True))
    asked = list(found) if layers is None else [layers] if isinstance(layers, (int, str)) else layers
    names = [known[each] for each in asked if isinstance(each, (int, str)) and each in known]
    if not names or len(set(names)) != len(asked):
        raise must_be("layers", f"one or more of 0 to {len(found) - 1}, or names as {[*found][-1]}", layers)
    banks = {name: _bank(kernel, found[name]) for name in names}
    places = {name: found[name].module for name in names}
    leave_home = home.enter(model, [*places.values()])
    frozen = [parameter for parameter in model.parameters() if freeze and parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    hooks = []
    for name, bank in banks.items():
        setattr(places[name], BANK, bank)
        if patches := found[name].patches:
            hooks.append(patches.register_forward_hook(partial(_note_grid, places[name])))
    path = getattr(getattr(model, "config", None), "_name_or_path", None) or None
    text = kernel if isinstance(kernel, str) else None
    parts = [part for part in banks[names[0]].modules() if isinstance(part, Kernel)]
    classes = None if text else list(map(_named, parts))
    saved = _Saved(base_model_name_or_path=path, kernel=text, kernels=classes, target_modules=names)
    return KernelBankAdapter(
        places, saved, partial(_leave, model, [*places.values()], leave_home, hooks, frozen)
    )


def _note_grid(attention: Any, conv: nn.Module, args: Any, patches: Tensor) -> None:
    getattr(attention, BANK).note_grid(conv, args, patches)


def _leave(
    model: nn.Module,
    modules: Sequence[nn.Module],
    leave_home: Callable[[], None],
    hooks: Sequence[RemovableHandle],
    frozen: Sequence[nn.Parameter],
) -> None:
    """Take banks out of their modules. No closure: a deep copy of model and adapter leaves the copy."""
    leave_home()
    for hook in hooks:
        hook.remove()
    for module in modules:
        delattr(module, BANK)
    of_peft = any(hasattr(part, "base_layer") for part in model.modules())
    for parameter in frozen if not of_peft else ():
        parameter.requires_grad_(True)


def bank_beside(model: str, local: bool) -> Path | None:
    """The folder of kernels that lies in a model's own, on the disk or at the hub, or None."""
    if local:
        folder = Path(model) / BANK_FOLDER
        return folder if is_file(folder / _CONFIG) else None
    try:
        return _at_hub(model, BANK_FOLDER)
    except InputError as error:
        if isinstance(error.__cause__, EntryNotFoundError):
            return None
        raise


def _at_hub(name: str, inside: str | None = None) -> Path:
    """The kernels of a repository at the hub, or of a folder in it, downloaded where they are not here."""
    with reading(Path(f"{HUB}{name}"), "a kernel bank"):
        files = [hf_hub_download(name, each, subfolder=inside) for each in (_CONFIG, _TENSORS)]
    return Path(files[0]).parent


def _named(kernel: Kernel) -> str:
    """The class of a kernel with its settings."""
    settings = ", ".join(f"{name}={getattr(kernel, name)!r}" for name in kernel.settings)
    return f"{type(kernel).__name__}({settings})"


def _bank(kernel: KernelOfHeads, place: Place) -> GatedKernel:
    """The kernel of a layer, where the layer is, float32 at least."""

    def make(heads: int) -> Kernel:
        if isinstance(kernel, str) and (asked := re.fullmatch(r"bank(?:-([1-9]\d{0,3}))?", kernel)):
            terms = int(asked[1] or _TERMS)
            bank = KernelBank(heads, terms, init="spread" if place.patches is None else "grid")
            bank.sigma = terms**-0.5
            return bank
        if isinstance(kernel, str):
            return ComposedKernel(kernel, heads)
        takes = callable(kernel) and not isinstance(kernel, (type, nn.Module))
        made = kernel(heads) if takes else kernel
        if not isinstance(made, Kernel):
            accepted = "text, a kernel, as Gaussian(8.0), or a function of the number of heads that makes one"
            raise must_be("kernel", accepted, made)
        return copy.deepcopy(made)

    weight = next(place.module.parameters())
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    hooks = (part._hf_hook for part in place.module.modules() if hasattr(part, "_hf_hook"))
    hook: Any = next(hooks, None) if weight.is_meta else None  # of accelerate, which offloads weights
    device = weight.device if hook is None else hook.execution_device
    return GatedKernel(place.num_heads, make, place.patches is not None).to(device, dtype)
