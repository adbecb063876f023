"""Buckets: fixed few-shot training sets, one for each (language, K, bucket id); drawn, written, read and checked.

Without torch. Source: Zhao et al. 2021, "A Closer Look at Few-Shot Crosslingual Transfer" (section 3, appendix A).
"""
