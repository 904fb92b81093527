"""The route language: texts to the model, with every fault reported at once."""
