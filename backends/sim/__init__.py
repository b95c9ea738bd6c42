"""The modelled world: a Machine in virtual time."""
