"""Experiments: a grid becomes runs, which an engine places and a folder keeps. Importing this
imports no torch."""
