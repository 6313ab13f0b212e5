"""What every test needs before it is imported."""

import nadaraya._torchvision  # noqa: F401 - test modules import timm first
