"""What names a session among all jobs of a namespace."""

import orjson

from aftermind.types import Scope


def session_key(scope: Scope) -> str:
    """An effect key of the user's session: no two (user, session) pairs share one, whatever their ids are."""
    return orjson.dumps([scope.user_column, scope.session_id]).decode()
