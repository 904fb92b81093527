"""Client mode: messages to requests, responses to publications; queues and workers of each route."""
