"""The web console: pages for operators, the API behind them, and who may do what."""
