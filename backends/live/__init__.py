"""The wall-clock world: threads, real storage, a real cloud and a real model. The model needs the torch extra."""
