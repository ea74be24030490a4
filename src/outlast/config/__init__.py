"""The recipe: schema with a class on every field, its loader and its leaves. No torch, no ray."""

from outlast.config.fields import FieldClass, Section
from outlast.config.load import LoadedRecipe, load_recipe, parse_recipe
from outlast.config.schema import Recipe

__all__ = ["FieldClass", "LoadedRecipe", "Recipe", "Section", "load_recipe", "parse_recipe"]
