"""Drawings of the pages, as SVG: charts of a route over time, and the flow from topic to server and back. Pure."""
