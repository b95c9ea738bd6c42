"""Stages of decoding: how a pipeline begins it, and what a planner prices it at. One is the other's op."""

from kvferry.pipelines.decoding.computing import (
    AssignKeys,
    Attend,
    MaintainClusters,
    NextToken,
    PassOn,
    PassOnRest,
    ProjectKeysValues,
    ProjectQueries,
)
from kvferry.pipelines.decoding.fetching import (
    BringAll,
    BringIndex,
    BringMissing,
    ChooseBlocks,
    Compare,
    LookUp,
    RebuildKeys,
    RetrieveBlocks,
    SwapIn,
    WriteBack,
)
from kvferry.pipelines.decoding.prefilling import (
    BringKnown,
    ClusterKeys,
    DecomposeKeys,
    FirstToken,
    PrefillOne,
    WriteOut,
)
from kvferry.pipelines.decoding.stage_kind import Kind

KINDS: dict[str, Kind] = {
    "bring_known": BringKnown(),
    "prefill": PrefillOne(),
    "write_out": WriteOut(),
    "cluster": ClusterKeys(),
    "decompose": DecomposeKeys(),
    "first_token": FirstToken(),
    "retrieve": RetrieveBlocks(),
    "project": ProjectQueries(),
    "project_kv": ProjectKeysValues(),
    "select": ChooseBlocks(),
    "look_up": LookUp(),
    "compare": Compare(),
    "bring": BringMissing(),
    "bring_all": BringAll(),
    "bring_index": BringIndex(),
    "swap": SwapIn(),
    "rebuild": RebuildKeys(),
    "write_back": WriteBack(),
    "attend": Attend(),
    "assign": AssignKeys(),
    "maintain": MaintainClusters(),
    "feed_forward": PassOn(),
    "rest": PassOnRest(),
    "next_token": NextToken(),
}
