"""Vision transformers on the operator, registered in timm (needs the `vision` extra).

    import timm
    import nadaraya.models.vit

    model = timm.create_model("gka_tiny_patch16_224", num_classes=10)
    hybrid = timm.create_model("gka_small_patch16_224", pattern="GGGA")

Gaussian kernel attention ("gka", Kundu et al. 2026) has no W_Q, W_K and W_V; value-less attention ("vlt") no
W_V. Everything else is timm's `VisionTransformer`: any keyword of it passes through.
"""

from nadaraya.errors import InputError

try:
    from nadaraya.models.vit.convert import convert
    from nadaraya.models.vit.factory import create_image_model
    from nadaraya.models.vit.model import KernelVisionTransformer
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.split(".")[0] == "nadaraya":
        raise
    raise InputError(f'image models need {missing.name}: pip install "nadaraya[vision]"') from missing

__all__ = [
    "KernelVisionTransformer",
    "convert",
    "create_image_model",
]
