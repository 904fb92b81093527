"""What editors and `rest-bridge fmt` do with route texts: texts in, plain values out. Pure."""
