"""What happened to a subscriber, and whether all is as promised."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from accounting import Account

DOCS = Path(__file__).resolve().parents[2] / "docs"
OF_A_NAMED_QUEUE = ("queue_deleted", "exchange_deleted")  # those that leave a gap there, too


@dataclass
class Happening:
    """A fault that was injected, and what was published from then until the next one."""

    fault: str
    kind: str
    seconds: float  # until what was published then was received and acked
    gaps: int
    start: int
    end: int = 0
    lost: int = 0
    doubled: int = 0


@dataclass
class Life:
    """A subscriber with a queue of this kind."""

    kind: str
    happenings: list[Happening]
    account: Account
    subscriptions: int
    gaps: int
    stuck: str | None = None

    @property
    def flaws(self) -> list[str]:
        found = [self.stuck] if self.stuck else []
        numbers = {what: getattr(self.account, what) for what in ("lost", "doubled", "unexplained")}
        found += [
            f"{self.kind}: {len(which)} {what}, such as {which[:3]}"
            for what, which in numbers.items()
            if which
        ]
        if self.account.disordered and self.kind != "quorum":
            found.append(f"{self.kind}: {self.account.disordered} out of order")
        if self.kind == "exclusive":
            expected = self.subscriptions - 1
        else:
            expected = sum(happening.gaps > 0 for happening in self.happenings)
            others = [h for h in self.happenings if h.gaps and h.fault not in OF_A_NAMED_QUEUE]
            found += [f"{self.kind}: a gap at {h.fault} that did not happen" for h in others]
        if self.gaps != expected:
            found.append(f"{self.kind}: {self.gaps} gaps recorded, and {expected} happened")
        return found


def attribute(account: Account, happenings: list[Happening], end: int) -> None:
    """Which fault was the last one before each message that was lost or doubled."""
    for happening, after in zip(happenings, [*happenings[1:], None], strict=True):
        happening.end = after.start if after else end
        for what in ("lost", "doubled"):
            numbers = getattr(account, what)
            count = sum(happening.start <= number < happening.end for number in numbers)
            setattr(happening, what, count)
