"""The operator graph and its words."""

from seer.graph.kinds import (
    COLLECTIVES,
    COMMUNICATION,
    COMPUTE,
    FROM_HOST,
    GEMMS,
    HYBRID_DISPATCH,
    LAUNCH,
    MATRIX,
    PLAIN_DISPATCH,
    TO_HOST,
    DType,
    OperatorKind,
    Origin,
    Pass,
)
from seer.graph.operator_graph import GraphBuilder, OperatorGraph
from seer.graph.work import WORK_COLUMNS, WorkTable

__all__ = [
    "COLLECTIVES",
    "COMMUNICATION",
    "COMPUTE",
    "FROM_HOST",
    "GEMMS",
    "HYBRID_DISPATCH",
    "LAUNCH",
    "MATRIX",
    "PLAIN_DISPATCH",
    "TO_HOST",
    "WORK_COLUMNS",
    "DType",
    "GraphBuilder",
    "OperatorGraph",
    "OperatorKind",
    "Origin",
    "Pass",
    "WorkTable",
]
