"""`rest-bridge serve`: run a broker with its plugins from one configuration file."""
