"""Analyze run records: score matrices, measures, reference scores and summaries.

Pure functions on labeled arrays, without torch and without MLflow. Scores of metrics in percent are fractions. A
missing score is NaN. A result that needs it is NaN too, and the summary gives the reason. Inputs are never modified.
"""
