"""A psql that runs on: a start takes 7 ms of CPU time, and in a new session each statement takes five times as long."""

import subprocess

from aftermind.stack import binaries

_END = "-- end of the answer"
_LIMIT = "SET statement_timeout = '180s'"


class PsqlSession:
    """Statements of one database, each in its own transaction, by one session for as long as the server keeps it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._running: subprocess.Popen[str] | None = None

    def run(self, *statements: str) -> str:
        """Their bare output; in a new session if the last one has ended."""
        if self._running is not None:
            try:
                return self._ask(self._running, *statements)
            except AssertionError:
                self.end()
        argv = [str(binaries.postgres_bin() / "psql"), self._url, "-XAtq", "-v", "ON_ERROR_STOP=1"]
        self._running = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return self._ask(self._running, _LIMIT, *statements)

    def end(self) -> None:
        """End it; the next call begins another."""
        if self._running is not None:
            self._running.communicate()
            self._running = None

    @staticmethod
    def _ask(running: subprocess.Popen[str], *statements: str) -> str:
        assert running.stdin is not None
        assert running.stdout is not None
        lines: list[str] = []
        try:
            running.stdin.write("".join(f"{statement};\n" for statement in statements) + f"\\echo {_END}\n")
            running.stdin.flush()
        except BrokenPipeError:
            raise AssertionError("psql has ended") from None
        for line in running.stdout:
            if line.strip() == _END:
                return "".join(lines).strip()
            lines.append(line)
        raise AssertionError("".join(lines))
