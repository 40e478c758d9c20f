"""Recipes, and the commands that train, score and compare what they describe."""
