"""From run records to numbers: score matrices, meta-metrics, reference scores, summaries.

Pure functions on labelled arrays, without torch and without MLflow. Scores are fractions in [0, 1]; what was not
measured is NaN and makes everything computed from it NaN, with a reason in the summary; inputs are never changed.
"""
