"""The doctor's checks of keys (encryption, audit, webhooks) and of audit trails."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from aftermind import errors
from aftermind.api.address_resolution import Addresses
from aftermind.api.process_registry import find_mismatches, find_other_settings, fingerprints, list_settings
from aftermind.api.wiring import open_parts
from aftermind.cli.doctor_checks import Finding, Verdict, reports_failure
from aftermind.db.audit.log import Ends
from aftermind.db.tenant_moves import list_moved
from aftermind.settings import Settings
from aftermind.wire.process_registry import list_announced
from aftermind.wire.redis.client import RedisLink

MAX_NAMES = 3  # in one finding: a restore, or a wrong key, concerns all tenants or processes


@reports_failure("audit keys", "See `aftermind audit verify`.")
async def audit_keys(found: Addresses, settings: Settings) -> list[Finding]:
    """Whether every process writes audit trails with a key that this one has too, and whether a trail is shorter than
    its copy outside the database.
    """
    parts = open_parts(found, settings)
    try:
        if parts.trail is None:
            return []
        ends = []  # read first: processes add entries to the heads
        for witness in parts.trail.witnesses:
            with suppress(errors.Unavailable):  # Redis has another check
                ends.append(await witness.read_ends())
        async with parts.operations.transaction(read_only=True) as tx:
            used, heads = await parts.trail.used_keys(tx), await parts.trail.heads(tx)
        if parts.operations_namespace is None:  # else the role does not see the heads of other tenants
            moved = await list_moved(parts.operations)
            heads = {**{name: 0 for each in ends for name in each}, **heads}
            heads = {name: seq for name, seq in heads.items() if name not in moved}
        shortened = _shortened_trails(heads, ends)
        if not used:
            return shortened or [Finding(what="audit keys", seen="no trail yet")]
        missing = {name: key for name, key in used.items() if key not in parts.trail.keys.named()}
        if missing:
            said = f"trails of {', '.join(sorted(missing))} were last written with another key"
            remedy = (
                "Give every process the same AFTERMIND_AUDIT_KEY (or _FILE): the newest key first, then older ones."
            )
            return [Finding(what="audit keys", seen=said, verdict=Verdict.BAD, remedy=remedy)]
        trails = "1 trail was" if len(used) == 1 else f"{len(used):,} trails were"
        known = Finding(what="audit keys", seen=f"{trails} last written with a key of this process")
        return [known, *shortened]
    finally:
        await parts.close()


def _shortened_trails(heads: Mapping[str, int], ends: Sequence[Ends]) -> list[Finding]:
    furthest = {name: max((max(each.get(name) or [0]) for each in ends), default=0) for name in heads}
    shorter = [name for name, seq in sorted(heads.items()) if furthest[name] > seq]
    if not shorter:
        return []
    seen = _names([f"{name} ends at {heads[name]} instead of {furthest[name]}" for name in shorter])
    remedy = (
        "After the restore of an older copy this is expected; otherwise entries were deleted. Run `aftermind audit "
        "verify` and keep its output."
    )
    return [Finding(what="audit trail", seen=seen, verdict=Verdict.WARNING, remedy=remedy)]


@reports_failure("keys", "See docs/security.md.")
async def keys(found: Addresses, settings: Settings) -> list[Finding]:
    """Whether this process and all that run use the same keys: one that does not cannot read what others write."""
    link = RedisLink(str(found.redis), timeout=2.0, name="aftermind-doctor")
    try:
        announced = await list_announced(link, link.keys(settings.redis_prefix))
    finally:
        await link.close()
    seen = {**announced, "this process": fingerprints(settings)}
    findings = [
        Finding(
            what="keys",
            seen=f"{', '.join(lacking)} {'lacks' if len(lacking) == 1 else 'lack'} the newest "
            f"AFTERMIND_{setting.upper()}, which {_names(those)} {'has' if len(those) == 1 else 'have'}",
            verdict=Verdict.BAD,
            remedy=f"Give every process the same AFTERMIND_{setting.upper()} (or _FILE), the newest key first.",
        )
        for setting, lacking, those in find_mismatches(seen)
    ]
    findings += [
        Finding(
            what="settings",
            seen=f"{', '.join(theirs)} in {_names(those)}; this command has other values",
            verdict=Verdict.WARNING,
            remedy="Restart these processes with the new settings: `aftermind up` does it for the embedded stack.",
        )
        for those, theirs in find_other_settings(announced, list_settings(settings))
    ]
    findings = findings or [
        Finding(what="keys", seen=f"{len(announced)} running processes and this one use the same keys")
    ]
    return [*findings, *await _master_keys(found, settings)]


async def _master_keys(found: Addresses, settings: Settings) -> list[Finding]:
    """Namespaces whose keys this process cannot open, and those with keys of an older master key."""
    parts = open_parts(found, settings)
    try:
        encrypted = await parts.encryption.list()
    finally:
        await parts.close()
    closed = [each.namespace for each in encrypted if each.master_key is None]
    older = [each.namespace for each in encrypted if each.master_key]
    findings = []
    if closed:
        remedy = (
            "Their turns and jobs wait. Give every process the master key with which `aftermind encrypt` was run: "
            "AFTERMIND_ENCRYPTION_KEY takes several, separated by commas."
        )
        seen = f"this process cannot open the keys of {_names(closed)}"
        findings.append(Finding(what="master key", seen=seen, verdict=Verdict.BAD, remedy=remedy))
    if older:
        remedy = "Run `aftermind rotate-keys --master` before you remove the older master key from the setting."
        seen = f"an older master key opens the keys of {_names(older)}"
        findings.append(Finding(what="master key", seen=seen, verdict=Verdict.WARNING, remedy=remedy))
    return findings


def _names(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f", and {more:,} others" if more > 0 else "")
