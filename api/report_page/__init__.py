"""One HTML file about runs, comparisons, sweeps and reproductions, to be shared and read without KVFerry."""
