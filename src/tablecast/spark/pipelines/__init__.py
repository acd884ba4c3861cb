"""Pipelines on Spark: their definitions, their progress, and what keeps them running."""
