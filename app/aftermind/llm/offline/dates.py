"""Meaning of "last year" or "since March" in a turn of a given date.

`dateparser` was evaluated: it resolves "march" or "last week" to a guessed day and hour, reads numbers and "may" as
dates, and takes a millisecond per text. Facts need the intended period, from few forms.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_MONTH = "|".join(f"{name}|{name[:3]}" for name in MONTHS)
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7}
_NUMBERS |= {"eight": 8, "nine": 9, "ten": 10, "a couple of": 2, "a few": 3}
_COUNT = r"\d{1,3}|" + "|".join(sorted(_NUMBERS, key=len, reverse=True))
_NUMBERS |= {"couple of": 2, "few": 3}  # behind "the last" alone
_WHEN = r"\b(?:in|since|from|until|till|to|by|of|during|around|before|after|early|mid|late)"
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_MONTH_WORDS, _UNIT_WORDS = tuple(name[:3] for name in MONTHS), ("day", "week", "month", "year")
_SEASONS = {"spring": 3, "summer": 6, "autumn": 9, "fall": 9, "winter": 12}
_QUALIFIERS = ("last", "this", "next")
# Parts of a year: their first month, and how many they have. "Early 2025" is its first third.
_PARTS = {
    **{f"{name} half": (month, 6) for name, month in (("first", 1), ("second", 7), ("latter", 7))},
    **{f"{name} quarter": (month, 3) for name, month in (("first", 1), ("second", 4), ("third", 7), ("fourth", 10))},
    **{f"h{half}": (6 * half - 5, 6) for half in (1, 2)},
    **{f"q{quarter}": (3 * quarter - 2, 3) for quarter in (1, 2, 3, 4)},
    "early": (1, 4),
    "mid": (5, 4),
    "late": (9, 4),
}
_EDGES = {"beginning": (1, 2), "start": (1, 2), "middle": (5, 4), "end": (11, 2)}  # "of" a year: some are verbs too
PART_NAME = rf"(?:{'|'.join(_PARTS)})"
PART = rf"(?:{PART_NAME}[\s-]+(?:of\s+|in\s+)?|(?:{'|'.join(_EDGES)})\s+of\s+)(?:19|20)\d{{2}}\b(?!-\d)"
# Each with words of which a text that it matches has one. Most texts have none: checked so, a turn takes 22 us for 85.
_FORMS = tuple(
    (re.compile(form, re.IGNORECASE), words)
    for form, words in (
        (r"(?P<iso>\d{4}-\d{2}-\d{2})", ("-",)),
        # Not "the 2010-11 season".
        (
            r"\b(?:in|during|of|since|before|after|until|till|by|from|to|through|and|between) "
            r"(?P<iso_month>(?:19|20)\d{2}-(?:0[1-9]|1[0-2]))(?![\d-]| season\b)",
            ("-",),
        ),
        (
            rf"(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?(?P<month>{_MONTH})\b\.?,?\s*(?P<year>\d{{4}})?",
            _MONTH_WORDS,
        ),
        (rf"(?P<month>{_MONTH})\b\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b,?\s*(?P<year>\d{{4}})?", _MONTH_WORDS),
        # "may" and "march" are verbs too, so a bare month must follow a word of time, or have a year.
        (
            rf"(?:\b(?P<which>last|this|next)|{_WHEN})\s+(?P<month>{_MONTH})\b(?:\s+(?:of\s+)?(?P<year>\d{{4}}))?",
            _MONTH_WORDS,
        ),
        (rf"\b(?P<month>{_MONTH})\b\s+(?:of\s+)?(?P<year>\d{{4}})", _MONTH_WORDS),
        (rf"^\s*(?P<month>{_MONTH})\s*$", _MONTH_WORDS),
        (rf"\b(?P<count>{_COUNT})\s+(?P<unit>day|week|month|year)s?\s+ago\b", ("ago",)),
        (rf"\b(?:last|past)\s+(?P<back>{_COUNT}|few|couple of)\s+(?P<unit>day|week|month|year)s\b", ("last", "past")),
        (
            r"\b(?:in|over|during|within|for)\s+the\s+(?:last|past)\s+(?P<rolling>day|week|month|year)\b(?!\s+of\b)",
            ("last", "past"),
        ),
        (rf"\b(?P<season>{'|'.join(_SEASONS)})\s+(?:of\s+)?(?P<year>\d{{4}})\b", tuple(_SEASONS)),
        (rf"\b(?P<part>{PART})", ("19", "20")),
        (rf"\bin\s+(?P<ahead>{_COUNT})\s+(?P<unit>day|week|month|year)s?\b", _UNIT_WORDS),
        (
            r"\b(?P<which>last|this|next)\s+(?P<unit>day|week|weekend|month|year|summer|winter|spring|autumn|fall)\b",
            _QUALIFIERS,
        ),
        (rf"\b(?P<which>last|this|next)\s+(?P<weekday>{'|'.join(_DAYS)})\b", _QUALIFIERS),
        (r"\b(?P<word>yesterday|today|tonight|tomorrow|now)\b", ("yesterday", "today", "tonight", "tomorrow", "now")),
        (rf"(?:{_WHEN}\s+|^\s*)(?P<year>(?:19|20)\d{{2}})\b(?!-\d)", ("19", "20")),
    )
)
_UNIT_DAYS = {"day": 1, "week": 7, "weekend": 7, "month": 30, "year": 365}


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A stretch of time, half-open, in UTC."""

    start: datetime
    end: datetime


def find(text: str, said_at: datetime) -> Period | None:
    """The first time in the text, relative to `said_at`; None if there is none."""
    folded = text.casefold()
    matches = [
        match
        for form, words in _FORMS
        if any(word in folded for word in words) and (match := form.search(text)) is not None
    ]
    for match in sorted(matches, key=lambda match: (match.start(), -len(match.group()))):
        if (period := _resolved(match.groupdict(), said_at)) is not None:
            return period
    return None


def _resolved(found: dict[str, str | None], said_at: datetime) -> Period | None:
    today = said_at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        if found.get("iso"):
            return _days(datetime.fromisoformat(str(found["iso"])).replace(tzinfo=UTC), 1)
        if found.get("iso_month"):
            return _months(datetime.fromisoformat(f"{found['iso_month']}-01").replace(tzinfo=UTC), 1)
        if found.get("month"):
            return _calendar(found, today)
        if part := (found.get("part") or "").lower():
            (month, count), *_ = (period for name, period in (_PARTS | _EDGES).items() if part.startswith(name))
            return _months(datetime(int(part[-4:]), month, 1, tzinfo=UTC), count)
        if found.get("season"):
            month = _SEASONS[str(found["season"]).lower()]
            start = datetime(int(str(found["year"])), month, 1, tzinfo=UTC)
            if month == _SEASONS["winter"] and start > today:
                start = start.replace(year=start.year - 1)  # the winter that ended in this year
            return _months(start, 3)
        if found.get("back"):
            return _back(_number(found["back"]), str(found["unit"]).lower(), today)
        if found.get("rolling"):
            return _back(1, str(found["rolling"]).lower(), today)
        if found.get("count") or found.get("ahead"):
            return _counted(found, today)
        if found.get("word"):
            return _days(today + timedelta(days={"yesterday": -1, "tomorrow": 1}.get(str(found["word"]).lower(), 0)), 1)
        if found.get("weekday"):
            return _weekday(found, today)
        if found.get("unit"):
            return _relative(str(found["which"]).lower(), str(found["unit"]).lower(), today)
        return _year(int(str(found["year"])))
    except (ValueError, OverflowError, LookupError):
        return None  # 31 February, a year beyond the calendar, or a long s, which a pattern takes for an s


def _calendar(found: dict[str, str | None], today: datetime) -> Period:
    month = [name[:3] for name in MONTHS].index(str(found["month"]).lower()[:3]) + 1
    which = (found.get("which") or "").lower()
    year = int(str(found["year"])) if found.get("year") else _nearest_year(month, which, today)
    if found.get("day"):
        return _days(datetime(year, month, int(str(found["day"])), tzinfo=UTC), 1)
    return _months(datetime(year, month, 1, tzinfo=UTC), 1)


def _nearest_year(month: int, which: str, today: datetime) -> int:
    """Without a qualifier a month is the latest one that has begun: people report the past."""
    if which == "next":
        return today.year if month > today.month else today.year + 1
    if which == "last":
        return today.year if month < today.month else today.year - 1
    return today.year if which == "this" or month <= today.month else today.year - 1


def _number(word: str | None) -> int:
    low = str(word).lower()
    return int(low) if low.isdigit() else _NUMBERS[low]


def _counted(found: dict[str, str | None], today: datetime) -> Period:
    count = _number(found.get("count") or found.get("ahead"))
    count = -count if found.get("count") else count
    unit = str(found["unit"]).lower()
    if unit == "year":
        return _year(today.year + count)
    if unit == "month":
        return _months(_plus_months(today.replace(day=1), count), 1)
    return _days(today + timedelta(days=count * _UNIT_DAYS[unit]), _UNIT_DAYS[unit] if unit == "week" else 1)


def _back(count: int, unit: str, today: datetime) -> Period:
    """ "The last six months": up to and with today."""
    if unit in ("month", "year"):
        start = _plus_months(today, -count * (12 if unit == "year" else 1)).replace(day=min(today.day, 28))
    else:
        start = today - timedelta(days=count * _UNIT_DAYS[unit])
    return Period(start=start, end=today + timedelta(days=1))


def _relative(which: str, unit: str, today: datetime) -> Period:
    step = {"last": -1, "this": 0, "next": 1}[which]
    if unit == "year":
        return _year(today.year + step)
    if unit == "month":
        return _months(_plus_months(today.replace(day=1), step), 1)
    if unit in _SEASONS:
        year = today.year + (step if step else 0)
        if which == "last" and _SEASONS[unit] + 2 < today.month:
            year = today.year
        start = datetime(year, _SEASONS[unit], 1, tzinfo=UTC)
        if which == "last" and _plus_months(start, 3) > today:
            start = start.replace(year=year - 1)  # a winter that continues in January is not the last one
        return _months(start, 3)
    if unit == "day":
        return _days(today + timedelta(days=step), 1)
    monday = today - timedelta(days=today.weekday()) + timedelta(weeks=step)
    return _days(monday + timedelta(days=5), 2) if unit == "weekend" else _days(monday, 7)


def _weekday(found: dict[str, str | None], today: datetime) -> Period:
    wanted = _DAYS.index(str(found["weekday"]).lower())
    ahead = (wanted - today.weekday()) % 7
    which = str(found["which"]).lower()
    if which == "last":
        return _days(today - timedelta(days=(today.weekday() - wanted) % 7 or 7), 1)
    return _days(today + timedelta(days=ahead or (7 if which == "next" else 0)), 1)


def _year(year: int) -> Period:
    return Period(start=datetime(year, 1, 1, tzinfo=UTC), end=datetime(year + 1, 1, 1, tzinfo=UTC))


def _months(start: datetime, count: int) -> Period:
    return Period(start=start, end=_plus_months(start, count))


def _days(start: datetime, count: int) -> Period:
    return Period(start=start, end=start + timedelta(days=count))


def _plus_months(moment: datetime, months: int) -> datetime:
    index = moment.year * 12 + moment.month - 1 + months
    return moment.replace(year=index // 12, month=index % 12 + 1, day=1)
