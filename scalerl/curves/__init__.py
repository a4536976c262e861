"""Scaling curves: where their points come from, how well a fit of them is known, and which of two is better.

`scalerl.fit` fits one curve, on `search`; `scalerl.forecast` says what it is worth, on `curve`, `region`,
`uncertainty`, `rivals` and `alarms`; `comparison`, `extending` and `record` stand on the forecast.
"""
