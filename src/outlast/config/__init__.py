"""The recipe: schema with a class on every field. Importing it pulls in neither torch nor ray."""

from outlast.config.fields import FieldClass, Section
from outlast.config.schema import Recipe

__all__ = ["FieldClass", "Recipe", "Section"]
