"""The consumer: stock's methods, and the right behaviour behind them."""
