"""From a question to a block: validate, embed, route, find, rank, cut to the budget, render."""

from aftermind.recall.pipeline import Candidates, Recall
from aftermind.recall.query import Mode, Query, RecallOptions
from aftermind.recall.reranker import Reranker
from aftermind.recall.routing import ReadNode, Routing

__all__ = ["Candidates", "Mode", "Query", "ReadNode", "Recall", "RecallOptions", "Reranker", "Routing"]
