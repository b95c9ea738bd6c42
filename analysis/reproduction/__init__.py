"""What stands behind ``kvferry reproduce``: a paper's data, its experiments carried out, the verdicts."""
