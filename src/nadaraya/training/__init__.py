"""Recipes, one explicit training loop, exact checkpoints, and the run folders they leave.

run = train(load_recipe("demo", ["model.variant=gpa-mul"]), Path("runs/demo"))
run.final["loss"]
"""

from nadaraya.names import built_in_recipes
from nadaraya.training.causal import open_causal_model
from nadaraya.training.image_recipe import ImageRecipe
from nadaraya.training.loop import train
from nadaraya.training.metrics import TrainingDiverged
from nadaraya.training.publishing import export_model, push_to_hub
from nadaraya.training.recipe import load_recipe
from nadaraya.training.run import Run
from nadaraya.training.text_recipe import Recipe
from nadaraya.training.trial import try_recipe

__all__ = [
    "ImageRecipe",
    "Recipe",
    "Run",
    "TrainingDiverged",
    "built_in_recipes",
    "export_model",
    "load_recipe",
    "open_causal_model",
    "push_to_hub",
    "train",
    "try_recipe",
]
