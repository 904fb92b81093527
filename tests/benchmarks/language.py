"""The route language: loading, filling placeholders, finding the events of a topic.

    python -m tests.benchmarks.language

Prints medians and, where a figure has a rival, both of one run and their ratio. Times are the processor's, not the
clock's, so that what else the machine does counts less.
"""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from amqtt_rest_bridge.lot.evaluation import Environment
from amqtt_rest_bridge.lot.loader import load
from amqtt_rest_bridge.lot.placeholders.conditions import is_true
from amqtt_rest_bridge.lot.placeholders.kinds import Mode
from amqtt_rest_bridge.lot.placeholders.text import MessageValues, Place, parse
from amqtt_rest_bridge.lot.sources import Source
from amqtt_rest_bridge.topics import TopicIndex, filter_matches

ROUTE = """\
// Route {number}: what an operator writes, with a comment now and then.
DEFINE ROUTE Route{number} WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "https://api.example.com:8443/v1"
        WITH ENABLE_CLIENT "true"
        WITH REQUEST_TIMEOUT '10'
    ADD EVENT Report
        WITH SOURCE_TOPIC "plant/{number}/+/temperature"
        WITH METHOD "POST"
        WITH ENDPOINT "/readings/{{topic.3}}?source={{source_topic}}"
        WITH BODY '{{"value": {{value.json.temperature}}, "at": "{{timestamp}}"}}'
        WITH DESTINATION_TOPIC "answers/{number}"
        WITH HEADERS
            ADD Authorization "Bearer {{value.json.token}}"  // its own token
            ADD Accept application/json

"""
FILLED = "/v1/{value.json.device}/readings?at={timestamp.unix}&from={topic.2}"
PAYLOAD = b'{"device": "boiler-7", "temperature": 71.5, "token": "abc"}'


def main() -> None:
    """Run all sections."""
    print_start()
    print_loading()
    print_filling()
    print_conditions()
    print_finding()


def print_start() -> None:
    """Print what every start of the broker pays: importing the language, and a first small file."""
    code = (
        "import time; t = time.process_time(); from amqtt_rest_bridge.lot import evaluation, loader, sources;"
        "from pathlib import Path; i = time.process_time();"
        f"loader.load([sources.Source('a.lot', {ROUTE.format(number=1)!r})], evaluation.Environment({{}}, Path()));"
        "print(i - t, time.process_time() - i)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    imports, first = zip(*(map(float, run.stdout.split()) for run in runs), strict=True)
    print(f"import {statistics.median(imports) * 1e3:.0f} ms, first route {statistics.median(first) * 1e3:.0f} ms")


def print_loading() -> None:
    """Print lines a second for files of 10 to 1,000 routes: the figure must not fall."""
    rates = {}
    for routes in (10, 100, 1000):
        text = "".join(ROUTE.format(number=number) for number in range(routes))
        seconds = median_seconds(lambda text=text: load_text(text), runs=3)  # type: ignore[misc]
        rates[routes] = text.count("\n") / seconds
        print(f"load {routes:5} routes: {rates[routes]:7.0f} lines/s, {seconds:.3f} s")
    print(f"1,000 routes against 10: {rates[1000] / rates[10]:.2f} times the rate (at least 2,000 lines/s wanted)")


def load_text(text: str) -> None:
    """Load one text, which has no faults."""
    loaded = load([Source("a.lot", text)], Environment({}, Path("/nowhere")))
    if loaded.faults:
        raise SystemExit(str(loaded.faults[0]))


def print_filling() -> None:
    """Print microseconds for a template with three placeholders, JSON parsing included, in each place."""
    texts = {
        "endpoint": (FILLED, Place.ENDPOINT),
        "JSON body": ('{"d": "{value.json.device}", "t": {value.json.temperature}, "at": "{timestamp}"}', Place.JSON),
        "header": ("{value.json.token} {topic} {timestamp.unix_ms}", Place.HEADER),
        "topic": ("answers/{topic.2}/{value.json.device}/{timestamp.unix}", Place.TOPIC),
    }
    for name, (text, place) in texts.items():
        template = parse(text, place, Mode.CLIENT)

        def fill(template: object = template) -> None:
            for _ in range(1000):
                template.fill(MessageValues(PAYLOAD, 1769860800.5, topic="plant/boiler/temp"))  # type: ignore[attr-defined]

        print(f"fill {name:9}: {median_seconds(fill, runs=9) * 1e3:5.1f} us (at most 10 wanted)")


def print_conditions() -> None:
    """Print microseconds for a condition with two comparisons, of a payload that is parsed and of a new one."""
    when = "WITH WHEN '{value.json.temperature} >= 70 AND {value.json.device} LIKE \"boiler-%\"'\n"
    text = ROUTE.format(number=1).rstrip().replace("        WITH HEADERS", f"        {when}        WITH HEADERS")
    loaded = load([Source("a.lot", text)], Environment({}, Path("/nowhere")))
    condition = loaded.routes[0].client_events[0].when
    if condition is None:
        raise SystemExit("the route has no condition")
    parsed = MessageValues(PAYLOAD, 0.0, topic="in")

    def evaluate() -> None:
        for _ in range(1000):
            is_true(condition, parsed)

    def evaluate_new() -> None:
        for _ in range(1000):
            is_true(condition, MessageValues(PAYLOAD, 0.0, topic="in"))

    print(f"condition, payload parsed: {median_seconds(evaluate, runs=9) * 1e3:.1f} us (at most 3 wanted),", end=" ")
    print(f"parsing included: {median_seconds(evaluate_new, runs=9) * 1e3:.1f} us")


def print_finding() -> None:
    """Print microseconds to find the events of a topic among 10,000 filters, a third with wildcards."""
    chance = random.Random(7)  # the same filters in every run
    filters = [make_filter(chance, number) for number in range(10_000)]
    topics = [f"plant/{chance.randrange(60)}/line{chance.randrange(60)}/t{chance.randrange(4)}" for _ in range(500)]
    index = TopicIndex((text, number) for number, text in enumerate(filters))
    found = [seconds_of(lambda topic=topic: index[topic]) for topic in topics]  # type: ignore[misc]
    scanned = [seconds_of(lambda topic=topic: scan(filters, topic)) for topic in topics[:20]]  # type: ignore[misc]
    if any(list(index[topic]) != scan(filters, topic) for topic in topics[:20]):
        raise SystemExit("the index and the scan differ")
    hits = statistics.mean(len(index[topic]) for topic in topics)
    ours, theirs = statistics.median(found), statistics.median(scanned)
    print(f"find among 10,000 filters: {ours * 1e6:.1f} us median ({hits:.1f} matches; at most 20 wanted),", end=" ")
    slowest = sorted(found)[int(len(found) * 0.99)]
    print(f"{slowest * 1e6:.0f} us p99; scan {theirs * 1e6:.0f} us, {theirs / ours:.0f} times")
    for name, topic in (("exact match", filters[0]), ("no match", "office/door/7")):
        times = [seconds_of(lambda topic=topic: index[topic]) for _ in range(500)]  # type: ignore[misc]
        print(f"  {name}: {statistics.median(times) * 1e6:.1f} us")


def make_filter(chance: random.Random, number: int) -> str:
    """Make a filter of a plant with many lines; every third has wildcards, the first has none."""
    levels = ["plant", str(chance.randrange(60)), f"line{chance.randrange(60)}", f"t{chance.randrange(4)}"]
    if number == 0:
        return "exact/one"
    if number % 3 == 0:
        levels[chance.randrange(4)] = "+"
        if chance.random() < 0.3:
            levels[chance.randrange(2, 4) :] = ["#"]
    return "/".join(levels)


def scan(filters: list[str], topic: str) -> list[int]:
    """Test every filter: what the index saves."""
    return [number for number, text in enumerate(filters) if filter_matches(text, topic)]


def seconds_of(call: Callable[[], object]) -> float:
    """Time one call."""
    started = time.thread_time()
    call()
    return time.thread_time() - started


def median_seconds(call: Callable[[], object], *, runs: int) -> float:
    """Time a call several times, after one to warm up."""
    call()
    return statistics.median(seconds_of(call) for _ in range(runs))


if __name__ == "__main__":
    main()
