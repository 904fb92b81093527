"""Runs that were asked for: what is remembered of them, and what is kept. Pure."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from amqtt_rest_bridge.records.values import Record, RunDetail, RunQuery


@dataclass(slots=True, eq=False)
class Runs:
    """The answer to a query: `found` are those remembered, `kept` those with messages, `detail` is of the one named."""

    query: RunQuery
    found: list[Record]
    kept: list[Record] = field(default_factory=list)
    detail: RunDetail | None = None

    def newest(self) -> list[Record]:
        """Return the runs, the newest first; one that is both remembered and kept is returned once."""
        kept = {record.id: record for record in self.kept}
        known = set()
        runs = []
        for record in self.found:
            own = kept.get(record.id)
            if own is not None:
                known.add(record.id)
                record = replace(  # noqa: PLW2901
                    record, url=own.url or record.url,  # without what the message brought, too
                    retry_of=own.retry_of, retried_as=own.retried_as, retry_outcome=own.retry_outcome,
                )  # fmt: skip
            runs.append(record)
        runs += [record for name, record in kept.items() if name not in known]
        return sorted(runs, key=lambda record: record.time, reverse=True)[: self.query.limit]
