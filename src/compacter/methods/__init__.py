"""The twelve methods of the paper by their names. Importing this does not import torch."""

from compacter.methods.table import METHODS, Method, find_method

__all__ = ["METHODS", "Method", "find_method"]
