"""Recipes, and the commands that train, score and compare what they describe.

Every function refuses bad input with a `UserError`: one sentence, and nothing is left behind.
"""
