"""Prediction rows → counts per sentence → base scores, for training and analysis; without torch."""
