"""Training: recipes, the pipeline from data to a discrete network, run folders."""

from lrnets.training.recipe import Recipe, load_recipe, recipe_names

__all__ = ["Recipe", "load_recipe", "recipe_names"]
