"""The link between the broker process and a bridge process: `frames` is the protocol, the rest its ends."""
