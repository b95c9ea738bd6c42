"""The modelled world: link, processor, memory, energy, costs."""
