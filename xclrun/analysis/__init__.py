"""From run records to numbers: score matrices, meta-metrics, reference scores, summaries.

Pure functions on labeled arrays, without torch and without MLflow. Scores are fractions in [0, 1]. Missing
scores are NaN and propagate to all results, with a reason in the summary. Inputs are never modified.
"""
