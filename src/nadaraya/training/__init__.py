"""Recipes, one explicit training loop, exact checkpoints, and the run folders they leave.

run = train(load_recipe("demo", ["model.variant=gpa-mul"]), Path("runs/demo"))
run.final["loss"]
"""

from nadaraya.files import WriteFailed
from nadaraya.names import built_in_recipes
from nadaraya.training.causal import open_causal_model
from nadaraya.training.image_recipe import (
    ImageDataRecipe,
    ImageModelRecipe,
    ImageRecipe,
    ImageTrainingRecipe,
)
from nadaraya.training.loop import train
from nadaraya.training.metrics import TrainingDiverged
from nadaraya.training.processes import is_main_process
from nadaraya.training.publishing import export_model, model_card, push_to_hub
from nadaraya.training.recipe import load_recipe, recipe_help, recipe_keys, recipe_schema
from nadaraya.training.run import Run
from nadaraya.training.text_recipe import DataRecipe, ModelRecipe, Recipe, TrainingRecipe
from nadaraya.training.trial import Trial, try_recipe

__all__ = [
    "DataRecipe",
    "ImageDataRecipe",
    "ImageModelRecipe",
    "ImageRecipe",
    "ImageTrainingRecipe",
    "ModelRecipe",
    "Recipe",
    "Run",
    "TrainingDiverged",
    "TrainingRecipe",
    "Trial",
    "WriteFailed",
    "built_in_recipes",
    "export_model",
    "is_main_process",
    "load_recipe",
    "model_card",
    "open_causal_model",
    "push_to_hub",
    "recipe_help",
    "recipe_keys",
    "recipe_schema",
    "train",
    "try_recipe",
]
