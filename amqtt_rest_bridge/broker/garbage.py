"""Takes the objects that a broker's start has made out of the garbage collector's full rounds.

A full round stops every message while it visits all objects. After the start these are 55,000, more with many routes,
and they live until the broker ends; `freeze` makes later rounds leave them out.

Decision: only a process that runs nothing but the broker is frozen. Another program with a broker in it, such as a
test, may drop objects that it had at the broker's start, and frozen objects in reference cycles are never freed.

Decision: the thresholds of the collector stay. amqtt's sessions are in reference cycles: with a threshold of 10,000 in
place of 700, 4,000 clients that came and went left 70 MB more behind. Messages alone rarely start a round.
"""

import gc


def freeze() -> None:
    """Free the reference cycles that the start has left, and freeze all other objects; blocks for one full round."""
    gc.collect()
    gc.freeze()
