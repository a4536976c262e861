"""Scaling curves: where their points come from, how well a fit of them is known, and which of two is better.

`scalerl.fit` fits one curve and `scalerl.forecast` says what it is worth; both stand on these parts.
"""
