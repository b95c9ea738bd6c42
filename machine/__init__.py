"""What a pipeline may ask for: ops, tickets, facts, spans, and the Machine protocol."""
