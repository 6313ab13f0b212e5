"""Trains the related systems on small images: one recipe, timm's vision transformer, its attention replaced.

    python experiments/related_vision.py --source IMAGES --json experiments/results/related/vision.json

Two blocks of width 64 with two heads, 64 patches of 4 × 4 pixels, no class token, horizontal flips; AdamW,
the same updates, batches and learning rate for all. A system and seed that the file has is not trained again.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nadaraya import KernelSelfAttention, variants
from nadaraya.data.images.opening import open_images
from nadaraya.data.images.sources import ImageSource
from nadaraya.files import write_file

PATCHES = 64
BARE: dict[str, Any] = {"rotary": None, "head_norm": False}
#: variants and their options in vision: no rotary positions, and half as many landmarks as patches
SYSTEMS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "gka": BARE,
    "linear": {},
    "performer": {},
    "kernelized-rpe": {"num_tokens": PATCHES},
    "linformer": {"num_tokens": PATCHES, "num_mixtures": PATCHES // 2},
    "nystromformer": {"num_landmarks": PATCHES // 2},
    "skyformer": {"num_landmarks": PATCHES // 2},
    "gka-nystrom": {"num_landmarks": PATCHES // 2, "head_norm": False},
    "gka-features": {"head_norm": False},
    "gka-nearest": {"nearest": 16, **BARE},
    "krause": {"nearest": 16, "bandwidth": 4.5},
    "non-local": {},
    "local-linear": {"rotary": None, "ridge": 0.01},
    "parallax": {"rotary": None},
}
SETTINGS = {"updates": 200, "batch": 48, "warmup": 20, "rate": 3e-3, "kernel_rate": 1e-2, "decay": 0.05}


class Attention(KernelSelfAttention):
    """The layer as timm's blocks call it."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:  # type: ignore[override]
        out: Tensor = super().forward(x)
        return out


def make(system: str) -> nn.Module:
    """The model of a system."""
    model: nn.Module = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=4, embed_dim=64, depth=2, num_heads=2, num_classes=10,
        class_token=False, global_pool="avg",
    )  # fmt: skip
    for block in model.blocks:
        block.attn = Attention(64, 2, out_bias=True, **variants.get(system, **SYSTEMS[system]))
    return model


def pixels(source: ImageSource, count: int) -> tuple[Tensor, Tensor]:
    """The first images, (n, 3, 32, 32) in −1 … 1, and their labels."""
    images = np.stack([np.asarray(source.read(index)) for index in range(min(count, len(source)))])
    scaled = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1.0
    return scaled, torch.from_numpy(source.labels[: len(images)].copy())


def train(system: str, seed: int, images: Tensor, labels: Tensor) -> tuple[nn.Module, float]:
    """A trained model and its median seconds per update."""
    torch.manual_seed(seed)
    model = make(system).train()
    kernels = {id(parameter) for block in model.blocks for _, parameter in block.attn.kernel_parameters()}
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if id(p) not in kernels], "weight_decay": SETTINGS["decay"]},
        {
            "params": [p for p in parameters if id(p) in kernels],
            "lr": SETTINGS["kernel_rate"],
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=SETTINGS["rate"])
    updates, warmup = SETTINGS["updates"], SETTINGS["warmup"]
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * step / updates))
    )
    generator = torch.Generator().manual_seed(seed)
    seconds = []
    for _ in range(int(updates)):
        chosen = torch.randint(len(images), (int(SETTINGS["batch"]),), generator=generator)
        flips = torch.rand(len(chosen), 1, 1, 1, generator=generator) < 0.5
        begun = time.perf_counter()
        batch = torch.where(flips, images[chosen].flip(-1), images[chosen])
        F.cross_entropy(model(batch), labels[chosen]).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        seconds.append(time.perf_counter() - begun)
    return model.eval(), float(np.median(seconds))


@torch.no_grad()
def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Share of labels that are right, and cross-entropy in nats."""
    logits = torch.cat([model(batch) for batch in images.split(250)])
    return (logits.argmax(1) == labels).float().mean().item(), F.cross_entropy(logits, labels).item()


def main() -> None:
    """Train what the file lacks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", required=True, help="images, as `nadaraya train` takes them")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="SYSTEM")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    results = {
        "settings": SETTINGS,
        "train": 20_000,
        "validation": 5_000,
        "torch": torch.__version__,
        "runs": [],
    }
    if options.json.is_file():
        results = json.loads(options.json.read_text(encoding="utf-8"))
    there = {(row["system"], row["seed"]) for row in results["runs"]}
    found = open_images(options.source)
    images, held_out = pixels(found.train, results["train"]), pixels(found.validation, results["validation"])
    for seed in options.seeds:
        for system in options.systems:
            if (system, seed) in there:
                continue
            model, seconds = train(system, seed, *images)
            top1, loss = evaluate(model, *held_out)
            parameters = sum(p.numel() for p in model.parameters())
            results["runs"].append(
                {"system": system, "seed": seed, "top1": top1, "loss": loss, "parameters": parameters,
                 "step_seconds": seconds}
            )  # fmt: skip
            write_file(options.json, json.dumps(results, indent=1) + "\n")
            print(
                f"{system:16} seed {seed}  top-1 {top1:.3f}  loss {loss:.3f}  {seconds:.3f} s/update",
                flush=True,
            )


if __name__ == "__main__":
    main()
