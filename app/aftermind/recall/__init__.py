"""From a question to a block: validate, embed, route, find, rank, cut to the budget, render."""

from aftermind.recall.pipeline import Candidates, Recall
from aftermind.recall.query import Query, RecallMode, RecallOptions
from aftermind.recall.replica_selection import ReadNode, Routing
from aftermind.recall.reranker import Reranker

__all__ = ["Candidates", "Query", "ReadNode", "Recall", "RecallMode", "RecallOptions", "Reranker", "Routing"]
