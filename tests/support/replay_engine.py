"""Replay plans and the engine that runs them, as one object for tests that do both."""

from aftermind.ledger.postgres.replay_plans import Replays
from aftermind.ledger.postgres.replay_step import ReplayEngine


class SteppedReplays(Replays, ReplayEngine):
    """Plans that a test makes, starts and steps."""
