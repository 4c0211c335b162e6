"""How long a namespace keeps its episodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from aftermind import errors
from aftermind.types.timestamps import before_now

SHORTEST = timedelta(minutes=1)  # below it a turn could be deleted before its jobs are done


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """The episodes that a namespace keeps: younger than `max_age`, and of each user the newest `max_episodes`; None: no
    limit.

    `keep_important` exempts episodes with `"important": true` in their metadata and sources of current facts. `archive`
    is where deleted episodes are written first: a folder (`file:///…` or a path), or `s3://bucket/prefix`. `set_at` is
    when the policy was set: it first runs by itself `AFTERMIND_RETENTION_EVERY_SECONDS` later. `ran_at` is when it last
    ran to its end. Raises `InvalidSettings`.
    """

    namespace: str
    max_age: timedelta | None = None
    max_episodes: int | None = None
    keep_important: bool = False
    archive: str | None = None
    set_at: datetime | None = None
    ran_at: datetime | None = None

    def __post_init__(self) -> None:
        if self.max_age is not None and self.max_age < SHORTEST:
            why = f"the shortest is {SHORTEST.total_seconds():g} s: jobs of a younger turn may still run."
            raise errors.InvalidSettings("max_age", self.max_age, why)
        if self.max_age is not None and before_now(self.max_age) is None:
            raise errors.InvalidSettings("max_age", self.max_age, "it reaches back before the year 1.")
        if self.max_episodes is not None and self.max_episodes >= 2**31:
            raise errors.InvalidSettings("max_episodes", self.max_episodes, "at most 2,147,483,647.")
        if self.max_episodes is not None and self.max_episodes < 1:
            why = "keep one at least; `aftermind forget` deletes everything of a user."
            raise errors.InvalidSettings("max_episodes", self.max_episodes, why)
        if self.max_age is None and self.max_episodes is None:
            why = "name a greatest age, a greatest number of episodes, or both; `clear` keeps everything."
            raise errors.InvalidSettings("retention", None, why)
        if self.archive is not None and urlsplit(self.archive).scheme not in ("", "file", "s3"):
            why = "an archive is a folder (a path, or file:///…), or s3://bucket/prefix."
            raise errors.InvalidSettings("archive", self.archive, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionResult:
    """Result of running a policy, or with `dry_run` its forecast: affected users, deleted episodes, and other rows by
    kind.

    `archived` counts the episodes and facts written to the archive, `oldest` and `newest` are when they were
    remembered. `is_done` is False if the time limit was reached, after the user `stopped_after`: `run(after=…)`
    continues.
    """

    namespace: str
    users: int = 0
    episodes: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)
    archived: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    dry_run: bool = False
    is_done: bool = True
    stopped_after: str | None = None
