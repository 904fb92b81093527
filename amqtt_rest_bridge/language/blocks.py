"""A definition and its blocks, as `block_reader` makes them of a tree. Values stay as written. Data only."""

from dataclasses import dataclass, field

from amqtt_rest_bridge.language.grammar import ConditionTree, SettingNode
from amqtt_rest_bridge.language.parameters import BlockKind


@dataclass(slots=True)
class Block:
    """A block: `WITH` lines by name, each a setting that the block has, and the lines below WITH HEADERS.

    `broken` names settings that are present but could not be read; `guessed` those that an unknown name may mean:
    they are not missed, and nothing else is concluded from them. `condition` is the tree of WHEN, None where it is not
    one string, or nested too deeply.
    """

    kind: BlockKind
    offset: int
    name: str = ""
    settings: dict[str, SettingNode] = field(default_factory=dict)
    headers: list[SettingNode] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    guessed: set[str] = field(default_factory=set)
    condition: ConditionTree | None = None


@dataclass(slots=True)
class Definition:
    """One `DEFINE ROUTE ... WITH TYPE REST_API`: its blocks; `name` is None when it cannot be read.

    REST_API_CONFIG and ROUTE_CONFIG are None when they are missing. `broken` names blocks whose first line could not be
    read. `is_faulty`: its text has an error already.
    """

    name: str | None
    offset: int
    config: Block | None = None
    route_config: Block | None = None
    events: list[Block] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    is_faulty: bool = False
