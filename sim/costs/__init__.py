"""What an op costs: roofline, measured table, learned predictor."""
