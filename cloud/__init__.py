"""The cloud of a live run: encoded contexts in stores, the server that hands them out, the client that fetches them."""
