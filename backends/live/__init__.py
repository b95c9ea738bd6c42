"""The wall-clock world: a real model, real storage, a real cloud. Needs the torch extra."""
