"""Analyze run records: score matrices, measures, reference scores and summaries.

Pure functions on labeled arrays, without torch and without MLflow. Scores are fractions in [0, 1]. A missing score is
NaN. A result that needs it is NaN too, and the summary gives the reason. Inputs are never modified.
"""
